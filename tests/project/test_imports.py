from graphlib import TopologicalSorter

import grimp


def test_no_modules_import_each_other() -> None:
    """Imports for type checking count too. The CycleError lists the modules of a circle."""
    graph = grimp.build_graph("project", "completions", "workers", "installation")
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert len(imports) > 400
    TopologicalSorter(imports).prepare()
