"""How the page of documents looks, and the few lines that make its search work. Nothing is loaded from anywhere."""

from typing import Final

STYLE: Final = """
:root{--ink:#14212b;--soft:#5a6b78;--line:#dde4ea;--bg:#fbfcfd;--card:#fff;--side:#f1f5f8;--code:#f3f6f9;--sea:#0b6e8a;
--get:#0b7a55;--put:#9a5b00;--delete:#b3261e;--post:#5b4bb3;--pill:#e6f1f4;--mark:#fff3c4}
@media(prefers-color-scheme:dark){:root{--ink:#e4ecf1;--soft:#93a5b1;--line:#26343e;--bg:#0f171d;--card:#141f27;--side:#111b22;
--code:#0c1419;--sea:#58bfd9;--get:#4cc38a;--put:#e0a33e;--delete:#f2857d;--post:#a99cf0;--pill:#16303a;--mark:#5a4a10}}
*{box-sizing:border-box}html{scroll-behavior:smooth;scroll-padding-top:1.2rem}
body{margin:0;font:15px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;color:var(--ink);
background:var(--bg);display:grid;grid-template-columns:310px minmax(0,1fr)}
a{color:var(--sea);text-decoration:none}a:hover{text-decoration:underline}
code,pre,.path{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.87em}
aside{position:sticky;top:0;height:100vh;overflow:auto;background:var(--side);border-right:1px solid var(--line);
padding:1.3rem 1rem 3rem}
.brand{display:flex;align-items:center;gap:.6rem;font-size:1.25rem;font-weight:650;letter-spacing:-.01em;margin:0 .4rem 1rem}
.brand svg{width:28px;height:28px;color:var(--sea)}.brand small{font-weight:400;color:var(--soft);font-size:.8rem}
input{width:100%;padding:.55rem .75rem;border:1px solid var(--line);border-radius:9px;background:var(--card);color:var(--ink);
font:inherit}input:focus{outline:2px solid var(--sea);outline-offset:1px}
aside h2{font-size:.74rem;text-transform:uppercase;letter-spacing:.09em;color:var(--soft);margin:1.3rem .4rem .3rem}
aside h2 a{color:inherit}aside ul{list-style:none;margin:0;padding:0}
aside li a{display:flex;gap:.5rem;align-items:baseline;padding:.16rem .4rem;border-radius:6px;color:var(--ink);font-size:.83rem}
aside li a:hover{background:var(--pill);text-decoration:none}
aside li span.t{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
main{padding:2.4rem clamp(1.2rem,4vw,3.6rem) 6rem;max-width:1120px}
h1{font-size:2.1rem;line-height:1.2;letter-spacing:-.02em;margin:0 0 .6rem}.lead{color:var(--soft);font-size:1.06rem;max-width:70ch}
.facts{display:flex;flex-wrap:wrap;gap:.5rem;margin:1.1rem 0 2rem}
section.noun{margin-top:3rem}section.noun>h2{font-size:1.45rem;letter-spacing:-.01em;margin:0 0 .2rem;padding-bottom:.5rem;
border-bottom:1px solid var(--line)}
article{background:var(--card);border:1px solid var(--line);border-radius:13px;padding:1.05rem 1.25rem;margin:1rem 0;
box-shadow:0 1px 2px rgb(10 30 40/.04)}
article:target{border-color:var(--sea);box-shadow:0 0 0 3px var(--pill)}
article header{display:flex;flex-wrap:wrap;gap:.7rem;align-items:baseline}
article p{margin:.5rem 0 .35rem}.path{font-size:.98rem;font-weight:600;overflow-wrap:anywhere}.path i{color:var(--sea);font-style:normal}
.anchor{margin-left:auto;color:var(--soft);opacity:.55}
.m{font:700 .68rem/1 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;letter-spacing:.04em;color:var(--get);min-width:2.9rem}
.m.big{border:1.5px solid currentColor;border-radius:6px;padding:.32rem .5rem;text-align:center;font-size:.74rem}
.m.put{color:var(--put)}.m.delete{color:var(--delete)}.m.post{color:var(--post)}
.pills{display:flex;flex-wrap:wrap;gap:.4rem;margin:.5rem 0}
.pill{background:var(--pill);border-radius:99px;padding:.1rem .65rem;font-size:.8rem}
.pill.out{background:none;border:1px dashed var(--soft);color:var(--soft)}
details{margin:.45rem 0;border-top:1px solid var(--line);padding-top:.45rem}
summary{cursor:pointer;font-weight:600;font-size:.87rem;color:var(--soft)}summary:hover{color:var(--ink)}
table{border-collapse:collapse;width:100%;margin:.5rem 0;font-size:.88rem}
th{font-weight:600;text-align:left;color:var(--soft);font-size:.76rem;text-transform:uppercase;letter-spacing:.05em}
td,th{padding:.32rem .7rem .32rem 0;vertical-align:top;border-bottom:1px solid var(--line)}tr:last-child td{border-bottom:0}
td:first-child{white-space:nowrap}
td code{color:var(--ink);overflow-wrap:anywhere}td.k{color:var(--soft)}main{min-width:0;overflow-wrap:break-word}
pre{background:var(--code);border:1px solid var(--line);border-radius:9px;padding:.75rem .9rem;overflow:auto;margin:.55rem 0}
.selectors{columns:3 230px;font-size:.8rem;list-style:none;margin:.5rem 0;padding:0;max-height:22rem;overflow:auto}
.selectors code{overflow-wrap:anywhere}
.hidden{display:none!important}#none{display:none;color:var(--soft)}body.empty #none{display:block}
@media(max-width:860px){body{display:block}aside{position:static;height:auto;max-height:46vh;border-right:0;
border-bottom:1px solid var(--line)}main{padding-top:1.4rem}}
@media print{aside{display:none}body{display:block}details{break-inside:avoid}}
"""

SCRIPT: Final = """
const box=document.getElementById('q'),items=[...document.querySelectorAll('[data-t]')],
groups=[...document.querySelectorAll('[data-g]')];
function look(){const words=box.value.toLowerCase().split(/\\s+/).filter(Boolean);
for(const i of items)i.classList.toggle('hidden',!words.every(w=>i.dataset.t.includes(w)));
for(const g of groups)g.classList.toggle('hidden',!g.querySelector('[data-t]:not(.hidden)'));
document.body.classList.toggle('empty',!items.some(i=>!i.classList.contains('hidden')))}
box.addEventListener('input',look);
addEventListener('keydown',e=>{if(e.key==='/'&&document.activeElement!==box){e.preventDefault();box.focus()}
if(e.key==='Escape'){box.value='';look()}});
"""

MARK: Final = (
    '<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" '
    'stroke-linejoin="round" aria-hidden="true"><circle cx="12" cy="4.5" r="2.3"/><path d="M12 6.8V21M7.5 10.5h9"/>'
    '<path d="M3.5 13.5c0 4.6 3.8 7.5 8.5 7.5s8.5-2.9 8.5-7.5M3.5 13.5l-1.3 2.6M3.5 13.5l2.6 1.3M20.5 13.5l1.3 2.6'
    'M20.5 13.5l-2.6 1.3"/></svg>'
)
