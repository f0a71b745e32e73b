"""What the widgets that draw their own lines share."""

from __future__ import annotations

from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from .palette import Palette


class LineWidget(Widget):
    """Draws lines over the colours of its style sheet, which are worked out once per change:
    asking Textual for them costs more than a line does."""

    def __init__(self, palette: Palette, *, id: str) -> None:
        super().__init__(id=id)
        self.palette = palette
        self._base: Style | None = None

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._base = None

    def fitted(self, strip: Strip) -> Strip:
        """``strip`` in the widget's colours, exactly as wide as the widget."""
        if self._base is None:
            self._base = self.rich_style
        base, width = self._base, self.size.width
        return strip.apply_style(base).crop_extend(0, width, base)
