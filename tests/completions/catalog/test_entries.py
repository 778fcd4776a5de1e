"""models.toml: what is read, what is refused and how clearly."""

import re

import pytest

from completions.catalog.entries import _TYPES, LOGIT_PROCESSORS, CatalogError, load
from tests.acceptance.service import ROOT


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "models.toml"
        path.write_text(text)
        return load(path, tmp_path / "models")

    return read


def test_an_entry_has_its_folder_and_queue(read, tmp_path):
    catalog = read('[models.a]\npath = "x"\nmax_num_seqs = 3\n[models."org/b"]\nhub = "org/b"\n')
    a, b = catalog
    assert (a.id, a.folder, a.max_num_seqs) == ("a", tmp_path / "models" / "x", 3)
    assert (b.folder, b.queue) == (tmp_path / "models" / "org--b", "gen.org/b")
    assert catalog.get("a") is a
    assert catalog.get("c") is None


def test_an_absolute_path_stands_for_itself(read, tmp_path):
    (entry,) = read(f'[models.a]\npath = "{tmp_path}/elsewhere"\n')
    assert entry.folder == tmp_path / "elsewhere"


def test_a_gguf_file_has_a_folder_beside_it_that_describes_it(read, tmp_path):
    models = tmp_path / "models"
    a, b = read('[models."org/a"]\npath = "a/x.gguf"\n[models.b]\npath = "/y.gguf"\n')
    assert (a.gguf_file, a.folder) == (models / "a" / "x.gguf", models / "org--a--gguf")
    assert (str(b.gguf_file), b.folder) == ("/y.gguf", models / "b--gguf")
    assert read('[models.a]\npath = "x"\n').get("a").gguf_file is None


def test_logit_processors_are_added_to_those_that_every_model_has(read):
    text = '[models.a]\npath = "a"\n[models.a.logit_processors]\nmine = "a.b:C"\n'
    paths = read(text).get("a").logit_processors
    assert paths == {**LOGIT_PROCESSORS, "mine": "a.b:C"}
    assert read('[models.a]\npath = "a"\n').get("a").logit_processors == LOGIT_PROCESSORS


def test_the_scope_of_the_repetition_penalty_is_output_or_all(read):
    assert read('[models.a]\npath = "a"\n').get("a").repetition_penalty_scope == "output"
    text = '[models.a]\npath = "a"\nrepetition_penalty_scope = "all"\n'
    assert read(text).get("a").repetition_penalty_scope == "all"
    with pytest.raises(CatalogError, match="repetition_penalty_scope must be one of output, all"):
        read(text.replace('"all"', '"prompt"'))


def test_settings_of_a_gpu(read):
    (entry,) = read('[models.a]\npath = "a"\n')
    assert (entry.gpu_memory_utilization, entry.enforce_eager) == (0.9, False)
    assert (entry.async_scheduling, entry.grammar_threads) == (True, 1)
    assert entry.tensor_parallel_size == 1
    assert (entry.max_num_seqs, entry.max_sequences) == (None, 64)
    (entry,) = read(
        '[models.a]\npath = "a"\ngpu_memory_utilization = 1\nenforce_eager = true\n'
        "async_scheduling = false\ngrammar_threads = 3\nmax_num_seqs = 5\n"
        "tensor_parallel_size = 4\n"
    )
    assert entry.tensor_parallel_size == 4
    assert (entry.gpu_memory_utilization, entry.enforce_eager) == (1, True)
    assert (entry.async_scheduling, entry.grammar_threads) == (False, 3)
    assert (entry.max_num_seqs, entry.max_sequences) == (5, 5)


@pytest.mark.parametrize("given", ["", 'speculation = "auto"\n', "speculation = true\n"])
def test_speculation_is_on_by_default(read, given):
    assert read(f'[models.a]\npath = "a"\n{given}').get("a").speculation is True


@pytest.mark.parametrize("given", ['"off"', "false"])
def test_speculation_can_be_turned_off(read, given):
    text = f'[models.a]\npath = "a"\nspeculation = {given}\n'
    assert read(text).get("a").speculation is False


@pytest.mark.parametrize("given", ["1", '"on"', "[]", "{}"])
def test_another_speculation_is_refused(read, given):
    with pytest.raises(CatalogError, match='speculation must be "auto", "off", true or false'):
        read(f'[models.a]\npath = "a"\nspeculation = {given}\n')


def test_adapters_have_folders_by_name(read, tmp_path):
    (entry,) = read(
        f'[models.a]\npath = "a"\n[models.a.adapters]\nlegal = "x/legal"\nfar = "{tmp_path}/far"\n'
    )
    assert entry.adapters == {
        "legal": tmp_path / "models" / "x" / "legal",
        "far": tmp_path / "far",
    }
    hash(entry)  # entries are keys of caches


def test_tokens_that_end_every_text(read):
    (entry,) = read('[models.a]\npath = "a"\nstop_token_ids = [0, 7]\n')
    assert entry.stop_token_ids == (0, 7)
    hash(entry)


def test_how_a_model_calls_tools_and_thinks(read):
    (entry,) = read(
        '[models.a]\npath = "a"\ntool_format = "glm"\n'
        'think_tags = ["<think>", "</think>"]\nthinking_switch = "enable_thinking"\n'
    )
    assert entry.tool_format == "glm"
    assert (entry.think_tags, entry.thinking_switch) == (
        ("<think>", "</think>"),
        "enable_thinking",
    )
    hash(entry)


def test_think_tags_have_their_former_name_for_one_version(read):
    text = '[models.a]\npath = "a"\nthinking_marks = ["<think>", "</think>"]\n'
    (entry,) = read(text)
    assert entry.think_tags == ("<think>", "</think>")
    with pytest.raises(CatalogError, match="keep only think_tags"):
        read(text + 'think_tags = ["<t>", "</t>"]\n')


def test_a_model_is_chosen_by_name_or_as_the_only_one(read):
    one = read('[models.a]\npath = "a"\n')
    assert one.choose(None).id == "a"
    two = read('[models.a]\npath = "a"\n[models.b]\npath = "b"\n')
    assert two.choose("b").id == "b"
    with pytest.raises(CatalogError, match="a, b"):
        two.choose(None)
    with pytest.raises(CatalogError, match="no model 'c'"):
        two.choose("c")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names no model"),
        ("[models]\n", "names no model"),
        ("models = 3", "names no model"),
        ('[models.a]\npath = "a"\n[model.b]\npath = "b"\n', "unknown table or key 'model'"),
        ("[models.a", r"models\.toml"),
        ("[models.a]\n", "exactly one of"),
        ('[models.a]\npath = "a"\nhub = "b"\n', "exactly one of"),
        ('[models.a]\npath = "a"\ncolour = 1\n', "unknown key 'colour'"),
        ("[models.a]\npath = 3\n", "path must be of type str"),
        ('[models.a]\npath = "a"\nmax_num_seqs = true\n', "max_num_seqs must be of type int"),
        ('[models.a]\npath = "a"\nmax_num_seqs = 0\n', "at least 1"),
        ('[models.a]\npath = "a"\ngpu_memory_utilization = 0\n', "above 0 and at most 1, not 0"),
        ('[models.a]\npath = "a"\ngpu_memory_utilization = 1.5\n', "at most 1, not 1.5"),
        ('[models.a]\npath = "a"\ngpu_memory_utilization = true\n', "must be of type float"),
        ('[models.a]\npath = "a"\ndtype = "int3"\n', "dtype must be one of"),
        ('[models.a]\nwheel = "w==1"\n', "needs gguf"),
        ('[models.a]\npath = "a"\nadapters = "x"\n', "adapters must be of type table"),
        ('[models.a]\npath = "a"\nadapters.x = 3\n', "adapter 'x' must name a folder"),
        ('[models.a]\npath = "a"\nadapters."a:b" = "x"\n', "without a colon"),
        ('[models.a]\npath = "a"\nlogit_processors.x = "y"\n', "'x' must be 'module:attribute'"),
        ("[models]\na = 3\n", "must be a table"),
        (
            '[models.a]\npath = "a"\ntool_format = "x"\n',
            "tool_format must be one of auto, none, apertus,",
        ),
        ('[models.a]\npath = "a"\nthink_tags = "x"\n', "must be of type array"),
        ('[models.a]\npath = "a"\nthink_tags = ["x"]\n', "must be two strings"),
        ('[models.a]\npath = "a"\nstop_token_ids = [-1]\n', "integers of at least 0"),
        ('[models.a]\npath = "a"\nstop_token_ids = ["x"]\n', "integers of at least 0"),
        ('[models.a]\npath = "a"\nthink_tags = ["x", " "]\n', "must be two strings"),
        ('[models.a]\npath = "a"\nthinking_switch = "x"\n', "needs think_tags"),
    ],
)
def test_mistakes_are_named(read, text, complaint):
    with pytest.raises(CatalogError, match=complaint):
        read(text)


def test_the_comments_of_models_toml_explain_every_key():
    comments = re.findall(r"^#.*", (ROOT / "models.toml").read_text(), re.MULTILINE)
    for key in _TYPES:
        assert re.search(rf"\b{key}\b", "\n".join(comments)), key


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CatalogError, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml", tmp_path)
