"""Takes the README's pictures of the app at work, with the default model: ``python
docs/screenshots.py`` writes chat.svg, panel.svg and inspector.svg beside itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

from textual.pilot import Pilot

from pkvchat.client import EngineClient
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.settings import Settings
from pkvchat.tui.app import ChatApp

FOLDER = Path(__file__).parent
GREEDY = SamplingParams(temperature=0.0, max_tokens=220)
CODE = "Write a short Python function that checks whether a number is even."
OTHERS = (
    "Name three colours of the rainbow.",
    "Tell a long story about a lighthouse.",
    "Explain in detail how bread is made.",
)


async def ask(app: ChatApp, pilot: Pilot[int], prompt: str) -> None:
    app.composer.insert(prompt)
    await pilot.press("enter")


async def answered(app: ChatApp, pilot: Pilot[int], characters: int) -> None:
    """Wait until the chat in view has an answer of that many characters, or a whole one."""
    while app.tab.busy and len(app.tab.chat.messages[-1].text) < characters:
        await pilot.pause(0.1)
    await pilot.pause(0.5)


async def main() -> None:
    client = EngineClient(EngineOptions(context=2048))
    client.start()
    app = ChatApp(client, GREEDY, Settings())
    async with app.run_test(size=(120, 40)) as pilot:
        while not app.session.state.ready:
            await pilot.pause(0.1)
            if app.session.state.dead:
                raise SystemExit(app.session.state.dead)
        await ask(app, pilot, OTHERS[0])
        await answered(app, pilot, 1000)
        await pilot.press("ctrl+t")
        await ask(app, pilot, CODE)
        await answered(app, pilot, 400)
        app.save_screenshot("chat.svg", str(FOLDER))
        for prompt in OTHERS[1:]:
            await pilot.press("ctrl+t")
            await ask(app, pilot, prompt)
        await answered(app, pilot, 200)
        app.save_screenshot("panel.svg", str(FOLDER))
        await pilot.press("f4", "down", "down")
        await pilot.pause(0.5)
        app.save_screenshot("inspector.svg", str(FOLDER))


if __name__ == "__main__":
    asyncio.run(main())
