"""Colours and typography of the pages, light and dark.

Plots name colours by role. The role is written as a CSS variable, so that one drawing serves both
themes and print.
"""

from __future__ import annotations

LIGHT = {
    "paper": "#fdfdfb",
    "panel": "#f4f4f0",
    "ink": "#1c1d1f",
    "muted": "#5c6066",
    "grid": "#e1e1db",
    "rule": "#cfcfc8",
    "warn": "#8a2b0e",
    "s1": "#1f5fa8",
    "s2": "#ad4a10",
    "s3": "#2a7548",
    "s4": "#7a47a3",
    "s5": "#7d6200",
    "s6": "#0d737a",
    "s7": "#a82c5c",
    "s8": "#55585e",
}
DARK = {
    "paper": "#15171a",
    "panel": "#1e2125",
    "ink": "#e9e7e3",
    "muted": "#a5a9b0",
    "grid": "#2c3035",
    "rule": "#42474e",
    "warn": "#f2a27e",
    "s1": "#7fb4f3",
    "s2": "#f0a069",
    "s3": "#7ecb9a",
    "s4": "#c7a6ec",
    "s5": "#d6bb5c",
    "s6": "#6dcbd2",
    "s7": "#f092b3",
    "s8": "#b4b7bd",
}
NUM_SERIES = 8
FONTS = (
    "ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','Liberation Sans',"
    "sans-serif"
)


def series(index: int) -> str:
    """Return the colour role of the n-th line of a plot, counted from 0."""
    return f"s{index % NUM_SERIES + 1}"


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{role}:{value};" for role, value in colours.items())


_RULES = """
*{box-sizing:border-box}
html{background:var(--paper);color:var(--ink);-webkit-text-size-adjust:100%}
body{margin:0 auto;padding:3.5rem 1.5rem 5rem;max-width:61rem;
 font:1rem/1.6 var(--fonts);font-variant-numeric:tabular-nums}
h1{font-size:1.9rem;line-height:1.2;font-weight:600;letter-spacing:-.015em;margin:0;
 overflow-wrap:anywhere}
h2{font-size:1.15rem;font-weight:600;margin:3.5rem 0 1rem;padding-top:1.1rem;
 border-top:1px solid var(--rule)}
h3{font-size:.95rem;font-weight:600;margin:0}
h3.part{margin:2.2rem 0 .8rem}
p{margin:0 0 .7rem;max-width:70ch}
.lead{color:var(--muted);margin:.5rem 0 0;max-width:64ch}
.badges{display:flex;flex-wrap:wrap;gap:.5rem;margin:0 0 1rem;padding:0;list-style:none}
.badges li{font-size:.72rem;line-height:1;font-weight:600;letter-spacing:.07em;
 text-transform:uppercase;padding:.42rem .6rem;border:1px solid currentColor;border-radius:3px;
 color:var(--muted)}
.badges li.warn{color:var(--warn)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(12.5rem,1fr));gap:1.6rem 2rem;
 margin:2.2rem 0 0}
.figures dt{font-size:.85rem;color:var(--muted);margin:0}
.figures dd{margin:0;font-size:2.15rem;line-height:1.25;font-weight:500;letter-spacing:-.02em}
.figures dd small{display:block;font-size:.8rem;line-height:1.45;font-weight:400;
 letter-spacing:0;color:var(--muted);margin-top:.25rem;overflow-wrap:anywhere}
.provenance{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.2rem;margin:2.2rem 0 0;
 font-size:.85rem}
.provenance>div{display:contents}
.provenance dt{color:var(--muted)}
.provenance dd{margin:0;min-width:0;overflow-wrap:anywhere}
.provenance details,.provenance summary{margin:0;padding:0;font-size:inherit;font-weight:400}
code{font-family:ui-monospace,"Liberation Mono",Menlo,monospace;font-size:.92em}
figure{margin:0 0 2rem;break-inside:avoid}
figcaption h3{display:inline}
figure svg.plot{display:block;width:100%;height:auto;margin-top:.4rem}
figure svg.plot *{stroke-linejoin:round}
.narrow{display:none}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:1.8rem 2.5rem;margin-top:2.5rem}
.pair figure{display:flex;flex-direction:column;justify-content:space-between;margin:0}
.pair figure:not(:has(svg.plot)){justify-content:flex-start}
.legend{display:flex;flex-wrap:wrap;gap:.15rem 1.4rem;margin:.15rem 0 0;padding:0;list-style:none;
 font-size:.82rem;color:var(--muted)}
.legend li{overflow-wrap:anywhere}
.legend svg{vertical-align:middle;margin-right:.45rem}
.statement{display:grid;grid-template-columns:13rem 1fr;gap:1.1rem 2rem}
.statement p:last-child{margin-bottom:0}
.note{font-size:.85rem;color:var(--muted)}
table{border-collapse:collapse;font-size:.84rem;line-height:1.4;width:100%}
th{font-weight:600;text-align:left;vertical-align:bottom}
th,td{padding:.3rem 1.1rem .3rem 0;border-bottom:1px solid var(--grid);vertical-align:top;
 overflow-wrap:anywhere}
.rounds th,.rounds td,.runs .n{text-align:right;padding:.25rem 0 .25rem .9rem;
 overflow-wrap:normal;white-space:nowrap}
.rounds .first{padding-left:2.6rem}
.rounds thead tr:first-child th{text-align:center;color:var(--muted);font-weight:400}
.runs .over th{border:0;padding-bottom:0;font-weight:400;color:var(--muted)}
.options td{min-width:7.5rem}
.options tbody th{font-weight:400;color:var(--muted);min-width:9rem}
.runs .over .g{text-align:center;padding-right:0;padding-left:1rem}
.runs thead .n{white-space:normal}
.runs td,.runs th{padding-top:.55rem;padding-bottom:.55rem}
.runs tbody th{font-weight:400;min-width:9rem}
.runs .strip{padding-right:0}
.runs .reference th,.runs .reference td{color:var(--muted)}
.runs small,.pairs small{display:block;color:var(--muted);font-size:.78rem}
.diagnostic{color:var(--muted)}
.scroll{overflow-x:auto}
.pairs th{font-weight:400;color:var(--muted);width:15rem}
details{margin:0 0 .4rem}
summary{cursor:pointer;font-weight:600;font-size:.95rem;padding:.35rem 0}
summary span{font-weight:400;color:var(--muted)}
details>div{padding:.4rem 0 1.4rem}
footer{margin-top:3.5rem;padding-top:1.1rem;border-top:1px solid var(--rule)}
@media(max-width:44rem){body{padding:2rem 1.2rem}.wide{display:none}.narrow{display:block}
 .pair,.statement{grid-template-columns:1fr}.pair{gap:2rem}
 .statement{gap:.3rem}.statement div{margin-bottom:1rem}
 .provenance{grid-template-columns:1fr;gap:0}.provenance dd{margin-bottom:.5rem}
 .runs,.runs tbody,.runs tr,.runs tbody th,.options,.options tbody,.options tr,.options tbody th{
 display:block;width:100%}
 .runs thead,.options thead,.runs .strip,.runs .reference .none{display:none!important}
 .runs tr,.options tr{border-bottom:1px solid var(--rule);padding:.7rem 0}
 .runs tbody th,.options tbody th{border:0;padding:0 0 .3rem;min-width:0;font-weight:600;
 color:var(--ink)}
 .runs td,.options td{display:flex;justify-content:space-between;gap:1.2rem;border:0;
 padding:.12rem 0!important;min-width:0;white-space:normal!important}
 .runs td::before,.options td::before{content:attr(data-label);color:var(--muted);flex:1 1 50%;
 text-align:left;overflow-wrap:anywhere}
 .runs td>span{text-align:right}.runs td small{display:inline;margin-left:.45em}}
@page{margin:16mm}
"""

_PRINT = """
@media print{{:root{{{light}}}html{{background:none}}
 body{{max-width:none;padding:0;font-size:10pt}}
 h2{{margin-top:1.6rem;break-after:avoid}}tr{{break-inside:avoid}}thead{{display:table-header-group}}
 .scroll{{overflow:visible}}.figures{{grid-template-columns:repeat(4,1fr);gap:1rem}}
 .rounds th,.rounds td{{padding-left:.4rem;font-size:7.5pt}}
 details::details-content{{content-visibility:visible;block-size:auto}}}}
"""


def stylesheet() -> str:
    """Return the whole style sheet of a page."""
    dark = f"@media(prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
    root = f":root{{color-scheme:light dark;--fonts:{FONTS};{_variables(LIGHT)}}}"
    # Print comes last: paper is white whatever the screen was.
    return root + dark + _RULES + _PRINT.format(light=_variables(LIGHT))


def document(title: str, body: str) -> str:
    """Return a self-contained HTML page around a body. Both arguments are escaped already."""
    # The policy makes "no request leaves this page" something that the browser enforces.
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{stylesheet()}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )
