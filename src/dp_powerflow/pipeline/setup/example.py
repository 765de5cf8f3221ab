"""The example that `init` writes without a feeder and meters: every key, on public data."""

from __future__ import annotations

_TOP = """\
# A release of dp-powerflow. Everything here is declared PUBLIC: never tune it on the private data.
# Paths are relative to this file. 'dp-powerflow init --feeder F --meters M' writes one for your own data.

[feeder]
source = "ieee123"            # ieee13, ieee123, an OpenDSS .dss file, a pandapower .json file, simbench:CODE
# taps = "taps.csv"           # regulator taps, declared public; without it a twin solves its own
# loads = "loads.csv"         # nominal loads, declared public: name, kw, kvar (customers); else the feeder's
base_mva = 1.0                # power base per phase
drop_islanded = false         # leave out nodes that no source feeds
# accept_difference = 1e-4    # voltages may differ from OpenDSS on the file by this [p.u.]; it is stated

[loads]
kind = "simulated"            # simulated | long | wide | opendss-shapes
# path = "meters.parquet"     # where the readings are (long, wide: CSV or Parquet)
# services = "services.csv"   # public list of customers and the load points they are behind
# classes = "classes.csv"     # of opendss-shapes: public class of every load, columns load, class
# unit = "kWh per interval"   # kW | W | kWh per interval | Wh per interval
# interval_label = "start"    # start | end
# time_zone = "Europe/Berlin" # IANA name; days are cut in it
# first_day = 2024-01-01
# last_day = 2024-12-31
# customer_column = "customer"
# time_column = "time"
# active_column = "active"
# reactive_column = "reactive"
# most_placeholders = 0.05    # share of load points with too many gaps; above it nothing is spent
# most_clipped = 0.05         # share of load points that are mostly outside the bounds; above it the same
# typical_kw = 0.5            # public mean load of a typical customer: with it a factor of 4 is seen
# on_suspect_unit = "error"   # readings that look like another unit: error | keep (only reported)
# floor_kw = 0.01             # small loads, zero and below, are raised to it
# most_export = 0.01          # energy that all load points may feed in, as a share of what they draw
# on_export = "error"         # if they feed in more: error | floor (what is fed in is dropped)
step_minutes = 15
load_points = 1000            # of simulated loads
homes_only = false            # true: homes alone, else homes, shops and works
# homes_per_point = 20        # with homes_only: homes behind a load point, which is their sum
days = 120                    # of simulated loads
seed = 0                      # of simulated loads

[model]
epsilon = 1.0                 # budget of the customers
delta = 1e-5
unit = "load-point"           # load-point (all days of a service) | load-point-day (the paper's)
# estimator = "history"       # history: customers persist, days follow one another (a twin, 14 days of meters
#                             # or more); structured | plain: independent days; without it as the days allow
private_classes = 0           # 0: public labels; 2 or more: found by private K-means, paid from the budget
components = 1                # Gaussians per class (the closed-form certificate needs 1)
variance_floor = 1e-2
power_factor = 0.97           # declared public, cos of the angle; negative: leading, as in OpenDSS
reactive_spread = 0.15        # full support: random part of q, as a share of the mean load
reactive_correlation_minutes = 120.0
use_scale = true              # loads relative to the public scale of their load point
bounds = [0.005, 1.0]         # declared p_min, p_max, relative to the scale (or kW without one)
# reuse = "demo-0"            # take the load model of this earlier release: costs the customers nothing more
# [model.bounds_of_class]     # margins of some classes, instead of bounds; private ones are "class 1", ...
# commercial = [0.05, 3.0]
# [model.power_factor_of_class]
# commercial = 0.9

[nodes]
load_class = "residential"    # class of every load; without it the model's first
"""

_NODES_OF: dict[str, str] = {
    "twin-network": """\
kw_per_customer = 1.5         # public: nominal kW of a load that stand for one customer
# scale_factor = 2.0          # of mode true-network instead: a node is one customer scaled up
""",
    "true-network": """\
scale_factor = 2.0            # public: times the model's relative load; at its upper bound a node draws twice
#                             # its nominal load, for which the feeder still has a solution
# kw_per_customer = 1.5       # of mode twin-network instead: a load is a sum of customers
""",
}

_NODES = """\
scale = "nominal"             # a node's public scale is its nominal load
# [nodes.kw_per_customer_of_class]  # of mode twin-network
# commercial = 10.0
# [nodes.class_of_load]
# s76a = "commercial"
# [nodes.power_factor_of_load] # of single loads, instead of that of their class; public
# s76a = -0.98

# [pv]
# latitude = 37.8             # a year of clear sky at this latitude, from release.first_day on; or instead
# first_day_of_year = 1       # of the clear sky, where release.first_day is not set
# irradiance = "irradiance.csv"  # public shares of peak, a line per step: one day or many, a column or a
#                             # file (folder) per PV system; day d of the corpus has day d modulo the days
# volt_var = "category B"     # none | category A | category B (IEEE 1547-2018) | file: its own curves

# [calendar]                  # of mode twin-network
# holidays = [2024-12-25, 2024-12-26]  # public days off beside weekends; or a text file, one date a line

# [weather]                   # of mode twin-network: public, of the meters' days and of the release's
# path = "weather.csv"        # a row per reading, sub-hourly to daily; its daily figures are published
# time = "time"
# temperature = "temperature" # column [°C]
# irradiance = "ghi"          # column [W/m²], if there is one
# time_zone = "UTC"           # of stamps without an offset; without it that of the meters
"""

_NETWORK_OF: dict[str, tuple[str, str]] = {
    "twin-network": (
        "Differential privacy of the network: power flow on a twin whose lines carry noise, drawn once.",
        """\
mode = "twin-network"
epsilon = 1.0                 # differential privacy of one element of the network, for any number of days
change = 0.05                 # neighbours: one element, its figures changed by factors up to 1.05
id = "twin-1"                 # the same twin serves every release; a new id is a new twin and is paid for
noise = "laplace"             # laplace (no delta), or gaussian with a delta: for many twins or changed lines
lines = "impedance"           # R and X of every line; or length, where conductor codes are public
transformers = false          # true: their impedances are protected too; what is not protected is public
capacitors = false            # true: their sizes
pv = false                    # true: capacities of PV systems
# protect = "if present"      # what a network has not is no reason to refuse it; the manifest says so
# charging_epsilon = 0.2      # share of epsilon for a line's charging; without it charging follows its length
# code_epsilon = 0.5          # share of epsilon for conductor codes (lines = "length"); else they are public
# x_ohm_per_km = 0.4          # public reactance and charging of lines without a conductor code
# c_nf_per_km = 10.0
released = "all"              # loaded: nodes with a load of their own; all: every node of the twin
controls = "day"              # regulators and capacitors act through a day; snapshot: each step for itself;
#                             # frozen: fixed taps, every load constant power at its node
also_publish = ["loads", "head", "states", "connections"]  # P and Q per node, power of the source, taps and
#                             # capacitors, buses and what joins them
coordinates = "private"       # public: those of the buses too; lengths of lines are then NOT protected
publish = "voltages"          # voltages | network | network and loads: tables for graph models in twin/,
#                             # with controls = "frozen" only
# graph_days = 7              # days of the corpus in those tables; without it all
# graph_frame = "rotated"     # voltages turned back by nominal angles, all near 1; "phasors": as they are
# graph_merges_switches = true  # nodes joined by a switch of next to no impedance are one bus of the tables
""",
    ),
    "true-network": (
        "The paper's Algorithm 1 as printed: per-instance evidence, NOT differential privacy of a line.",
        """\
mode = "true-network"
bound = "paper"               # paper: fixed power factors, days truncated to the bounds, formula as printed
#                             # corrected: the same with a repaired bound; full-support: reactive load is
#                             # random too, days pass the bounds, lines are covered at radius = 1e-12
radius = 1e-4                 # neighbours: changes of existing lines up to this Frobenius norm [p.u.]
epsilon = 100.0               # policy for the whole corpus
delta = 0.2
calibration_days = 1000
line_change = 0.01            # exact losses per line: neighbours scale one line's admittance by 1 ± this
line_draws = 0                # days drawn for them (INTERNAL); 0: none, 300 or more to say anything
require_evidence = false      # true: refuse the release where the evidence does not support the policy
""",
    ),
}

_BOTTOM = """\
[release]
id = "demo-1"
days = 28
# first_day = 2024-01-01      # date of the first day, of mode twin-network; without it 2023-01-01
output = "release"
state = "private-state"       # keys, ledger, internal reports: never publish this directory
solver = "batch"              # batch | opendss (slow; needs a feeder from OpenDSS and frozen controls)
# epsilon_cap = 4.0           # over all releases from these customers; default: this release's epsilon
# network_epsilon_cap = 400.0
# network_delta_cap = 0.5
# continues_loads = "loads-1" # these meter data are a new version of that account's
# continues_network = "network-instance-1"
# These meter data share nobody with those accounts, this network no line; every account is named.
# unrelated_loads = { accounts = ["loads-1"], reason = "another town" }
# unrelated_network = { accounts = ["network-instance-1 to network-instance-3"], reason = "another town" }
# insecure_seed = 0           # demos and tests only: the result says so and is not a release

# What card and metadata of the release say; nothing else depends on it.
# [publication]
# publisher = "Utility of Town"
# license = "CC-BY-4.0"       # identifier of the SPDX list; without it "not stated"
# citation = "Utility of Town. Voltages of a feeder, 2024."
# date = 2024-12-01           # day of publication; declared, never the clock
# url = "https://data.example.org/voltages"
"""


def example(mode: str = "twin-network") -> str:
    """The commented example of a mode; the keys of the other one are comments."""
    (other,) = _NETWORK_OF.keys() - {mode}
    (words, keys), (other_words, other_keys) = _NETWORK_OF[mode], _NETWORK_OF[other]
    network = f"[network]\n# {words}\n{keys}"
    instead = f"# Instead, mode {other}. {other_words}\n{_commented(other_keys)}"
    return "\n".join((_TOP + _NODES_OF[mode] + _NODES, network, instead, _BOTTOM))


def _commented(lines: str) -> str:
    return "".join(line if line.startswith("#") else f"# {line}" for line in lines.splitlines(keepends=True))
