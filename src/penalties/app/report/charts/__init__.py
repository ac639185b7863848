"""Charts, which the page's script draws with uPlot.

Here a chart is data: a title, what it is about, and lines or points. `Columns` holds the numbers of one run, each
series once and thinned where there are many, and a `Line` names one of them. Charts without a run stand for themselves:

    from .charts.points import Dots, Spot, dots, scatter

    dots("Effect of each term", [Dots("kl", "t1", values=[0.03, 0.04], low=0.02, high=0.05)], x_name="Δ base loss")
    scatter("Front", [Spot("kl.weight=0.1", "r0", x=0.4, y=2.1, front=True)], x_name="kl", y_name="base loss")

All of them are a `Chart`, which the template shows by `chart(figure, group)`; in a group the steps, the zoom and the
cursor are one.
"""
