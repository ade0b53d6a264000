from __future__ import annotations
import numpy as np, bottleneck as bn
from gradclip_cli.model import Series, Baseline, Explosion, Spike, Detection
from . import explosions, spikes

def detect(loss, grad_norm, lr):
    E=[];S=[]; nb=lb=None; jn=jl=0; div=False
    if grad_norm is not None and len(grad_norm):
        v=grad_norm.values; rows=np.flatnonzero(np.isfinite(v)&(v>0)); x=np.log(v[rows])
        f,l,lev,b,u=explosions.find(x)
        for a,c,L in zip(f,l,lev):
            p=a+int(np.argmax(x[a:c+1])); E.append(Explosion(int(rows[a]),int(rows[c]),int(rows[p]),float(np.exp(L)),float(np.exp(min(x[p]-L,700)))))
        jn=int((u.history>=8).sum())
    if loss is not None and len(loss):
        v=loss.values; rows=np.flatnonzero(np.isfinite(v)); y=v[rows]; st=loss.steps[rows]
        ex=np.zeros(len(y),bool)
        for e in E:
            a,c=np.searchsorted(st,[grad_norm.steps[e.first],grad_norm.steps[e.last]]); ex[a:c+1]=True
        raised=np.zeros(len(y),bool)
        if lr is not None and len(lr) and len(y):
            q=np.nan_to_num(lr.values[np.clip(np.searchsorted(lr.steps,st,'right')-1,0,len(lr)-1)])
            raised=q>=1.5*bn.move_min(q,min(50,len(q)),min_count=1)
            raised&=q>0
        tail=np.isfinite(v)
        endnf=not tail[-1]
        ev,b,u=spikes.find(y,ex,raised,endnf) if len(y) else ([],None,None)
        for e in ev:
            led=None; s0=st[e.first]
            for k,x_ in enumerate(E):
                gs=grad_norm.steps[x_.first]
                if gs<=s0:
                    d=np.searchsorted(grad_norm.steps,s0,'right')-1-x_.first
                    if d<=(8 if len(grad_norm)>=100 else 2): led=k
            S.append(Spike(int(rows[e.first]),int(rows[min(e.end,len(y))-1]),int(rows[e.peak]),float(e.level),float(e.height),e.recovered,float(e.excess),e.fatal,led))
        jl=int((u.history>=8).sum()) if u else 0
        div=any(e.fatal for e in ev) or not np.isfinite(v[-1])
    return Detection(tuple(E),tuple(S),(),None,None,jn,jl,bool(div))
