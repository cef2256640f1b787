import sys, time
from collections import defaultdict
from pathlib import Path
from statistics import median
sys.path.insert(0,'bench/probe')
import queues
from cohortlab import scenario as scenarios
from cohortlab.lab.place import LabPlace
from cohortlab.policies import KERNEL
P=("hackbench-pipes","hackbench","user-spin","tlb-shootdown","tlb-flush","mmapfork","dbench","pbzip2")
of=queues.scenario(2,2,P,"7.3")
ROUNDS=int(sys.argv[1])
N=r'''for t in $(cat /sys/fs/cgroup/machine.slice/*work*/cgroup.threads); do cut -d' ' -f3 /proc/$t/schedstat; done | awk '{s+=$1} END{print s}'; awk '/usage_usec/{print $2}' /sys/fs/cgroup/machine.slice/*work*/cpu.stat'''
def read(h): 
    a=h.check(N,60).split(); return int(a[0]),int(a[1])/1e6
found=defaultdict(list)
with LabPlace(of, probe=False, progress=lambda t,_: print(t,file=sys.stderr)) as place:
    h=place.host
    for t in h.check("cat /sys/fs/cgroup/machine.slice/*/cgroup.threads",60).split(): h.check(f"taskset -c -p 0 {t} || true")
    with place.policy(KERNEL, ("--cgroup-mode","smp")):
        for p in P: place.measure("work",p)
        for r in range(ROUNDS):
            for p in P:
                a=read(h); m=place.measure("work",p); b=read(h)
                c0=m.cpu_s["work"]; u0=m.value; n0=b[0]-a[0]
                with place.background("hog1","cpu-hog"):
                    a=read(h); m=place.measure("work",p); b=read(h)
                c1=m.cpu_s["work"]; n1=b[0]-a[0]
                if p=="dbench": c0,c1=c0/u0/2.0,c1/m.value/2.0; n1=n1/m.value/2.0; n0=n0/u0/2
                found[p].append(((c1-c0)/n1*1e6, c0, c1, n0, n1, c1/n1*1e6))
for p,v in found.items():
    print(p, "us a turn", sorted(round(x[0]) for x in v), "median %.0f"%median(x[0] for x in v), "cpu %.3f -> %.3f"%(median(x[1] for x in v), median(x[2] for x in v)), "turns %.3g %.3g"%(v[0][3],v[0][4]), "us/turn %.0f"%median(x[5] for x in v))
