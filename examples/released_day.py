"""Draw one day of a release: voltages of every node, power at the feeder head, taps.

    python examples/released_day.py demo-output/release docs/figures/released-day.png --day 9

The background is transparent and the words are grey, so that the figure reads on white and on black.
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np

import dp_powerflow as dpf

GREY = "#7d8590"
PHASES = {1: "#1f83d6", 2: "#e0742a", 3: "#2f9e6e"}  # each tells itself from white and from black
STYLE = {
    **{"text.color": GREY, "axes.labelcolor": GREY, "axes.edgecolor": GREY, "xtick.color": GREY},
    **{"ytick.color": GREY, "axes.spines.top": False, "axes.spines.right": False, "font.size": 9},
    **{"savefig.transparent": True, "legend.frameon": False},
}


def draw(corpus: dpf.Corpus, day: int) -> plt.Figure:
    """Three panels over the hours of one day."""
    magnitude = np.abs(corpus.voltages(days=[day]))[0]  # (step, node)
    head, taps = corpus.head(days=[day])[0].real, corpus.taps(days=[day])[0]
    hours = np.arange(len(magnitude)) * 24 / len(magnitude)
    figure, panels = plt.subplots(
        3, sharex=True, figsize=(8, 5.2), layout="constrained", height_ratios=(5, 2, 2)
    )
    voltage, power, steps = panels
    for phase, colour in PHASES.items():
        nodes = magnitude[:, corpus.connections.phase == phase]
        voltage.plot(hours, nodes, color=colour, linewidth=0.5, alpha=0.55)
        voltage.plot([], [], color=colour, label=f"phase {phase}")
    for limit in (0.95, 1.05):
        voltage.axhline(limit, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    power.plot(hours, head.sum(axis=-1) / 1000, color=PHASES[1])
    for k, series in enumerate(taps.T):
        steps.step(
            hours, series, where="post", linewidth=1.0, color=plt.cm.viridis(0.25 + 0.6 * k / taps.shape[1])
        )
    voltage.set(ylabel="voltage [p.u.]")
    voltage.legend(loc="lower left", ncols=3, bbox_to_anchor=(0, 1.0), borderaxespad=0.2)
    power.set(ylabel="head [MW]", ylim=(0, None))
    steps.set(ylabel="tap", xlabel="hour", xlim=(0, 24), xticks=range(0, 25, 3))
    steps.yaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(
        f"A released day: {magnitude.shape[1]} nodes, {len(magnitude)} steps, {taps.shape[1]} regulators",
        fontsize=10,
    )
    return figure


def main() -> None:
    """Read the release and write the figure."""
    parser = argparse.ArgumentParser(description="Draw one day of a release on a twin.")
    parser.add_argument("release", help="directory or URL")
    parser.add_argument("figure", help="file to write, PNG or SVG")
    parser.add_argument("--day", type=int, default=0)
    asked = parser.parse_args()
    with plt.rc_context(STYLE):
        draw(dpf.open_corpus(asked.release), asked.day).savefig(asked.figure, dpi=130)


if __name__ == "__main__":
    main()
