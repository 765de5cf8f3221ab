"""Every place in the package where a release may be refused for its config or its feeder."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import dp_powerflow

PACKAGE = Path(dp_powerflow.__file__).parent
ERRORS = {"PowerFlowError", "ConfigError", "FeederError"}
ABOVE = ("paper", "report", "cli", "_api", "fidelity")
"""Rooms that a release and a fleet cannot import (import-linter: layers point downward)."""


def raise_sites() -> Counter[str]:
    """`module:function` → how often it raises one of the errors."""
    found: Counter[str] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        if module_of(path).split(".")[0] not in ABOVE:
            found.update(f"{module_of(path)}:{name}" for name in _raising(ast.parse(path.read_text())))
    return found


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def site_of(frame: FrameType) -> str | None:
    """`module:function` of a frame of the package."""
    path = Path(frame.f_code.co_filename)
    if PACKAGE not in path.parents or path.suffix != ".py":  # a page template is no module
        return None
    return f"{module_of(path)}:{frame.f_code.co_qualname.replace('.<locals>', '')}"


def _raising(node: ast.AST, scope: tuple[str, ...] = ()) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        inner = (*scope, child.name) if named else scope  # type: ignore[attr-defined]
        # Wherever one is made, raised at once or not, as `ConfigError` or as `errors.ConfigError`.
        if isinstance(child, ast.Call) and _last_name(child.func) in ERRORS:
            yield ".".join(scope)
        yield from _raising(child, inner)


def _last_name(func: ast.expr) -> str | None:
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", None)


BEFORE = "before the spend only: config, read_inputs, mode.check, or a fleet before it charges anybody"
AGAIN = (
    "before the spend; afterwards the same is asked again, of the same inputs or of a twin of that structure"
)
DRAWN = "depends on noise or draws: no config and no feeder decides it"
CAUGHT = "the report says so and the release goes on; where evidence is required, it is asked before"
MISUSE = "no config reaches it: a wrong call from Python, or a bug elsewhere"
OTHER = "not asked by a release: certify, derive, init, inspect"

WHEN: dict[str, dict[str, int]] = {
    BEFORE: {
        "_parallel.__init__:engine_of": 1,
        "_parallel.cluster:DaskScheduler._client": 1,
        "_memory:check_memory": 2,
        "_parallel.fitness:_probe_beside": 1,
        "_parallel.fitness:refuse_unfit_workers": 2,
        "almanac.calendar:_date_of": 1,
        "almanac.calendar:read_holidays": 1,
        "almanac.stamps:_instants": 1,
        "almanac.stamps:_parsed": 1,
        "almanac.stamps:_placed": 1,
        "almanac.stamps:_refuse_disorder": 1,
        "almanac.stamps:_stamps": 3,
        "almanac.stamps:_table": 6,
        "almanac.stamps:read_readings": 1,
        "almanac.weather:_daily": 1,
        "almanac.weather:_refuse_other_irradiance": 1,
        "almanac.weather:_refuse_other_temperatures": 2,
        "config.__init__:checked": 2,
        "config.__init__:read_toml": 4,
        "fleet.accounts:feeders_of": 2,
        "fleet.config:_with_absolute_paths": 1,
        "fleet.config:parse_feeder_config": 1,
        "fleet.feeders:_matches": 2,
        "fleet.feeders:feeder_config": 1,
        "fleet.feeders:find_sources": 3,
        "fleet.feeders:public_names": 2,
        "fleet.feeders:read_registers": 1,
        "fleet.repair:Repair.retried": 1,
        "fleet.repair:_keys_of": 2,
        "fleet.repair:restore": 1,
        "fleet.run:_Run._refuse_another_config": 1,
        "fleet.publishing:Folder.refuse_other_contents": 1,
        "fleet.publishing:Shelf.refuse_other_states": 1,
        "fleet.publishing:Shelf._refuse": 1,
        "grid.ieee:dss_commands": 1,
        "grid.opendss.elements:ElementReader._capacitor": 2,
        "grid.opendss.elements:ElementReader._line": 1,
        "grid.opendss.elements:ElementReader._reactor": 1,
        "grid.opendss.elements:ElementReader._regulator": 1,
        "grid.opendss.elements:ElementReader._winding": 1,
        "grid.opendss.parameters:_allocated_loads": 1,
        "grid.opendss.parameters:_enabled_names": 2,
        "grid.opendss.parameters:_undrawn_codes": 1,
        "grid.opendss.parameters:_voltage_bases": 2,
        "grid.opendss.parameters:read_frame": 1,
        "grid.opendss.script:_Reader._command": 3,
        "grid.opendss.script:_Reader._element": 1,
        "grid.opendss.script:_Reader._options": 2,
        "grid.opendss.script:_Reader._redirect": 1,
        "grid.opendss.script:_Reader.file": 1,
        "grid.opendss.script:_refuse_hidden": 3,
        "grid.opendss.script:_refuse_wrong_windings": 1,
        "grid.opendss.script:read_script": 1,
        "grid.pandapower.frame:_characteristics": 1,
        "grid.pandapower.frame:_controllers": 1,
        "grid.pandapower.frame:_open_steps": 1,
        "grid.pandapower.frame:_second_changers": 1,
        "grid.pandapower.frame:_shifts": 1,
        "grid.pandapower.frame:_sources": 2,
        "grid.pandapower.frame:_taps_off_neutral": 1,
        "grid.pandapower.frame:_unknown_tables": 1,
        "grid.pandapower.reader:read_pandapower_file": 1,
        "grid.pandapower.reader:read_simbench": 1,
        "grid.pandapower.reader:with_declared_loads": 1,
        "grid.pandapower.saved:load_net": 4,
        "grid.sources:LoadTable.check": 2,
        "grid.sources:_customers": 1,
        "grid.sources:_opened": 1,
        "grid.sources:_origin_of_taps": 1,
        "grid.sources:_power": 2,
        "grid.sources:_read": 1,
        "grid.sources:_tap": 2,
        "grid.sources:check_feeder": 4,
        "grid.sources:read_loads": 4,
        "grid.sources:read_taps": 3,
        "pipeline.feasibility.loads:refuse_endless": 1,
        "pipeline.feasibility.verdict:on_twins": 2,
        "pipeline.feasibility.verdict:refuse_unsolved_corners": 1,
        "pipeline.fitting:refuse_short_history": 1,
        "pipeline.inputs:_check_file_curves": 1,
        "pipeline.inputs:_irradiance": 1,
        "pipeline.inputs:_meter_file": 1,
        "pipeline.inputs:_shapes": 2,
        "pipeline.inputs:check_declared": 2,
        "pipeline.inputs:require_declared_taps": 1,
        "pipeline.modes.true:TrueMode._check_nodes": 1,
        "pipeline.modes.true:TrueMode._refuse_few_days_of_calibration": 1,
        "pipeline.modes.true:TrueMode._refuse_the_impossible": 1,
        "pipeline.modes.true:TrueMode.check": 2,
        "pipeline.modes.true:refuse_steep_control": 1,
        "pipeline.modes.twin:TwinMode._check_connections": 1,
        "powerflow.comparison:_AsItIs._voltages": 1,
        "powerflow.comparison:check_reading": 1,
        "powerflow.sun:_columns": 2,
        "powerflow.sun:_file_of": 1,
        "powerflow.sun:_one_column": 1,
        "powerflow.sun:read_irradiance": 4,
    },
    AGAIN: {
        "_files:only_process": 1,  # the profiler sees its generator leave the lock
        "almanac.calendar:Calendar.__post_init__": 2,
        "almanac.calendar:Calendar.starting": 1,
        "almanac.weather:Weather.__post_init__": 3,
        "almanac.weather:Weather.require": 1,
        "grid.feeder:Feeder._refuse_no_voltage": 1,
        "grid.opendss.engine:_refuse_ambiguous": 1,
        "grid.opendss.engine:_refuse_late_windings": 1,
        "grid.opendss.engine:_refuse_more_phases": 1,
        "grid.opendss.engine:_refuse_other_frequency": 1,
        "grid.opendss.engine:build_circuit": 2,
        "grid.opendss.engine:objections": 1,
        "grid.opendss.engine:refuse_open": 1,
        "grid.opendss.engine:run": 1,
        "grid.opendss.engine:set_taps": 2,
        "grid.opendss.engine:solve": 1,
        "grid.opendss.parameters:_taps": 2,
        "grid.opendss.parameters:_units_of_length": 1,
        "grid.opendss.reader:_freeze_taps": 1,
        "grid.opendss.reader:_indexed": 1,
        "grid.opendss.reader:_indexed.resolve": 1,
        "grid.opendss.reader:_refuse_missing_taps": 1,
        "grid.opendss.reader:_system_admittance": 1,
        "grid.opendss.reader:_translated": 2,
        "grid.opendss.reader:_with_emf_nodes": 1,
        "grid.pandapower.circuit:Circuit._two_ports": 1,
        "grid.pandapower.engine:_not_represented": 3,
        "grid.pandapower.engine:_strange_ends": 1,
        "grid.pandapower.engine:check_net": 2,
        "grid.pandapower.engine:with_branch_model": 2,
        "grid.pandapower.reader:_injections": 1,
        "grid.pandapower.taps:TapChanger.position_of": 2,
        "grid.pandapower.taps:set_taps": 2,
        "grid.problems:Problems.add": 1,
        "grid.rebuilt:lines_rebuilt_wrongly": 2,
        "grid.rebuilt:others_rebuilt_wrongly": 2,
        "grid.reduction:_factorise": 1,
        "grid.sources:Rebuilder.__init__": 1,
        "pipeline.connections:public_places": 1,
        "pipeline.customers:_services_on_loads": 2,
        "pipeline.customers:count_customers": 3,
        "pipeline.nodes:_check_load_names": 2,
        "pipeline.nodes:declared_classes": 1,
        "pipeline.nodes:declared_factors": 1,
        "pipeline.nodes:some_loaded_nodes": 1,
        "powerflow.factor:_refuse_unconnected": 2,
        "powerflow.factor:factorise": 1,
        "powerflow.factor:measured_rows": 1,
        "powerflow.factor:no_load_voltage": 1,
        "powerflow.jacobian.batch:JacobianBatch.__init__": 1,
        "powerflow.jacobian.kernels:_sparse_factor": 1,
        "powerflow.opendss:OpenDssSolver.__init__": 3,
        "powerflow.opendss:OpenDssSolver._refuse_other_network": 2,
        "powerflow.opendss:_system_admittance": 1,
        "powerflow.operated_plan:_prepared": 2,
        "powerflow.terminals:TerminalFactors.factorised": 1,
        "powerflow.terminals:factorise_terminals": 1,
        "powerflow.devices:_rated": 1,
    },
    DRAWN: {
        "evidence.calibration:DaySolver._of_steps": 1,
        "grid.opendss.parameters:_compiled": 1,
        "grid.opendss.parameters:rebuild": 1,
        "grid.sources:Rebuilder._build": 1,
        "model.sample:_mended": 1,
        "pipeline.modes.twin:TwinMode._with_taps": 1,
        "pipeline.parts:make_part": 1,
        "powerflow.batch:Solution.raise_if_failed": 1,
        "powerflow.batch:refuse_bad_power": 2,
        "powerflow.jacobian.matrices:SparseJacobian._largest": 1,
        "powerflow.jacobian.matrices:factorised": 1,
    },
    CAUGHT: {
        "grid.norms:Amplification.bound": 1,
        "grid.norms:spectral_norm": 1,
    },
    MISUSE: {
        "grid.opendss.parameters:_Record.refuse_rest": 1,
        "grid.opendss.parameters:_Record.take": 1,
        "grid.opendss.parameters:_line": 2,
        "grid.pandapower.parameters:_fill_lines": 1,
        "grid.pandapower.parameters:_level": 1,
        "grid.pandapower.parameters:rebuild": 1,
        "powerflow.acting:ActingSolver.__init__": 1,
        "powerflow.batch:BatchSolver.__init__": 2,
        "powerflow.batch:BatchSolver._targets": 1,
        "powerflow.batch:checked_output": 2,
        "powerflow.batch:checked_pair": 1,
        "powerflow.batch:checked_power": 2,
        "powerflow.batch:checked_threads": 1,
        "powerflow.batch:prepare": 1,
        "powerflow.jacobian.batch:JacobianBatch._checked": 2,
        "powerflow.jacobian.sigma_bound:SigmaBound.__init__": 1,
        "powerflow.opendss:OpenDssSolver.solve": 1,
        "powerflow.operated:OperatedSolver.__init__": 3,
        "powerflow.operated:OperatedSolver._injected": 1,
        "powerflow.operated:OperatedSolver._run": 1,
        "powerflow.operated:OperatedSolver.device_powers": 1,
        "powerflow.operated:OperatedSolver.solve": 1,
        "powerflow.operated:_checked": 2,
        "powerflow.sun:clear_sky": 2,
        "powerflow.terminals:TerminalFactors.slot": 1,
        "powerflow.reference:ReferenceSolver.solve": 1,
        "powerflow.sun:Generation.__post_init__": 1,
        "powerflow.sun:_pv_power": 2,
        "powerflow.voltvar:VoltVar.__post_init__": 1,
        "powerflow.voltvar:VoltVarCurve.__post_init__": 3,
    },
    OTHER: {
        "derived.dispatch.gridfm:refuse_gridfm": 1,
        "derived.dispatch.kind:OptimalDispatch._facts": 1,
        "derived.dispatch.kind:OptimalDispatch._prices": 1,
        "derived.dispatch.kind:OptimalDispatch.check": 2,
        "derived.dispatch.placing:Places._at_bus": 3,
        "derived.dispatch.placing:Places._at_node": 2,
        "derived.dispatch.placing:ampacities": 1,
        "derived.hosting.kind:HostingCapacity.check": 5,
        "derived.hosting.limits:ampacities_of": 1,
        "derived.hosting.snapshots:per_kw": 1,
        "derived.hosting.snapshots:prepared": 1,
        "derived.kinds:kind_of": 3,
        "derived.reliability.points:require_customers": 2,
        "derived.reliability.sections:_declared": 1,
        "derived.reliability.sections:_declared_ties": 1,
        "derived.reliability.sections:_devices": 1,
        "derived.reliability.tree:_require_codes": 1,
        "derived.reliability.tree:_walk": 1,
        "derived.reliability.tree:require_lengths": 1,
        "radial:RadialNetwork.__post_init__": 4,
        "opf.tree:_Builder._refuse_loop": 1,
        "opf.tree:_Builder._walk": 1,
        "opf.units:UnitsPowerFlow.__init__": 1,
        "pipeline.deriving.basis:Settings.of": 1,
        "pipeline.deriving.owner:_sun": 1,
        "powerflow.batch:refuse_curves": 1,
        "powerflow.operated:OperatedSolver.solve_held": 1,
        "grid.opendss.engine:declared_voltages": 2,
        "grid.problems:in_full": 1,
        "grid.sources:twin_problems": 1,
        "pipeline.modes.base:NetworkMode.evidence": 1,
        "pipeline.setup.feeder:feeder_facts": 1,
        "pipeline.setup.modes:mode_named": 1,
        "pipeline.setup.write:_known_feeder": 1,
        "pipeline.setup.write:_public": 1,
        "pipeline.setup.write:refuse_overwriting": 2,
        "pipeline.setup.write:set_up": 1,
    },
}
"""When each of them can be raised, and how many there are: a new one belongs here before it is merged."""
