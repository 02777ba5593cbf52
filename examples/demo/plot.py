"""The revenue of each day, stacked by product, as a picture."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # no window
import matplotlib.pyplot as plt

COLOURS = ["#1f4e79", "#2e86ab", "#6cb4c4", "#a9d6c4", "#f2b134", "#e4572e"]


def draw(cents: dict[tuple[date, str], int], late: dict[date, int], path: Path) -> None:
    """`cents` by day and product; `late` of it came to the log on another day, and is hatched."""
    days = sorted({day for day, _ in cents})
    products = sorted({product for _, product in cents}, key=lambda name: -sum(cents.get((d, name), 0) for d in days))
    figure, axes = plt.subplots(figsize=(10, 4.8), dpi=120)
    below = [0.0] * len(days)
    for product, colour in zip(products, COLOURS, strict=False):
        heights = [cents.get((day, product), 0) / 100 for day in days]
        axes.bar(days, heights, bottom=below, color=colour, label=product, width=0.85)  # type: ignore[arg-type]
        below = [low + height for low, height in zip(below, heights, strict=True)]
    offline = [late.get(day, 0) / 100 for day in days]
    lower = [top - height for top, height in zip(below, offline, strict=True)]
    hatched = {"facecolor": "none", "edgecolor": "#333333", "hatch": "////", "linewidth": 0.0}
    axes.bar(days, offline, bottom=lower, width=0.85, label="came late", **hatched)  # type: ignore[arg-type]
    axes.set_title("Revenue per day and product, by Spark from the log", loc="left", fontsize=12)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    shown = days[:: max(1, len(days) // 7)]
    axes.set_xticks(shown, [f"{day:%d %b}" for day in shown])  # type: ignore[arg-type]  # dates do, too
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
