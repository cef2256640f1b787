import sys, time, re, collections
import queues
from cohortlab.lab.place import LabPlace
from cohortlab.policies import KERNEL
P=("pbzip2","hackbench","cpu-hog")
of=queues.scenario(2,2,P,"7.3")
SAMP=r'''for i in $(seq 40); do echo "== $(cut -d' ' -f1 /proc/uptime)"; grep -A60 'machine.slice' /sys/kernel/debug/sched/debug | grep -E 'cfs_rq\[|runnable_avg|tg_load_avg|se->load.weight|h_nr_runnable|  \.load  ' ; grep -E 'avg_idle|max_idle' /sys/kernel/debug/sched/debug; sleep 0.2; done'''
ALL=r"""for d in /proc/[0-9]*/task/[0-9]*; do read r w n <$d/schedstat; echo "$d $(cat $d/comm | tr ' ' _) $r $w $n"; done 2>/dev/null"""
DOM=r"""cd /sys/kernel/debug/sched/domains; for f in cpu*/domain*/*; do echo "$f $(cat $f)"; done; cat /sys/devices/system/cpu/cpu*/cache/index*/level /sys/devices/system/cpu/cpu*/cache/index*/shared_cpu_list || true; cat /sys/kernel/debug/sched/features | tr ' ' '\n' | grep -E 'NI_|CACHE|LB'; ls /sys/kernel/debug/sched /sys/kernel/debug/sched/llc* 2>&1; dmesg | grep -i llc || true"""
TR="/sys/kernel/tracing"
def threads(place):
    d={}
    for l in place.host.check(ALL,300).splitlines():
        f=l.split()
        if len(f)==5: d[f[0],f[1]]=tuple(map(int,f[2:5]))
    return d
def diff(place,s,label):
    a=threads(place); t=time.time(); time.sleep(s); b=threads(place); t=time.time()-t
    print("threads", label, f"{t:.1f} s")
    for k in b:
        r,w,n=(y-x for x,y in zip(a.get(k,(0,0,0)),b[k]))
        if n: print("  ",k[1], k[0], f"run {r/1e6:.2f} ms wait {w/1e6:.1f} n {n}")
with LabPlace(of, probe=False, progress=lambda t,_: print(t,file=sys.stderr)) as place:
    h=place.host
    print(h.check(DOM,300))
    h.check("sysctl -w kernel.sched_schedstats=1")
    with place.policy(KERNEL, ()):
        time.sleep(2); diff(place,10,"idle guests")
    for mode in ("concur","smp"):
      for program in P:
        with place.policy(KERNEL, ("--cgroup-mode",mode)):
            with queues.busy(place, program):
                out=h.check(SAMP,300)
                open(f"avgs-{mode}-{program}.txt","w").write(out)
                if mode=="concur": diff(place,10,f"{mode} {program}")
                a=h.check("cat /proc/schedstat",60)
                h.check(f"echo > {TR}/trace; echo stacktrace > {TR}/events/sched/sched_migrate_task/trigger; echo 1 > {TR}/events/sched/sched_migrate_task/enable; echo 1 > {TR}/tracing_on")
                time.sleep(10)
                h.check(f"echo 0 > {TR}/events/sched/sched_migrate_task/enable; echo '!stacktrace' > {TR}/events/sched/sched_migrate_task/trigger")
                b=h.check("cat /proc/schedstat",60)
                tr=h.check(f"cat {TR}/trace",60)
                open(f"mig-{mode}-{program}.txt","w").write(tr)
                open(f"ss-{mode}-{program}.txt","w").write(a+"\n=====\n"+b)
                print(mode, program, len(tr))
    print(h.check(DOM,300))
