//! Programs that start others: every way of multiprocessing, pools, shared memory, subprocesses.

use brig_proto::v1::{ExecutionSpec, Limits};
use brig_tests::daemon;
use brig_tests::spec::{code, small};

/// As people write it: functions first, the main part behind the guard; on two CPUs.
fn pool(method: &str) -> ExecutionSpec {
    const SOURCE: &str = "\
import multiprocessing as mp

def total(n):
    return sum(range(n))

if __name__ == '__main__':
    mp.set_start_method('METHOD')
    with mp.Pool(2) as pool:
        print(pool.map(abs, [-1, -2]), pool.map(total, [10, 100]))
";
    ExecutionSpec {
        limits: Some(Limits {
            cpus: Some(2.0),
            ..Limits::default()
        }),
        ..small(&SOURCE.replace("METHOD", method))
    }
}

#[test]
fn a_pool_works_by_fork() {
    let daemon = daemon!();
    assert_eq!(daemon.stdout(pool("fork")), "[1, 2] [45, 4950]\n");
}

#[test]
fn a_pool_works_by_spawn() {
    let daemon = daemon!();
    assert_eq!(daemon.stdout(pool("spawn")), "[1, 2] [45, 4950]\n");
}

#[test]
fn a_pool_works_by_forkserver() {
    let daemon = daemon!();
    assert_eq!(daemon.stdout(pool("forkserver")), "[1, 2] [45, 4950]\n");
}

#[test]
fn a_pool_of_executors_works_with_numpy() {
    let daemon = daemon!();
    let source = "\
from concurrent.futures import ProcessPoolExecutor
import numpy as np

def norm(seed):
    return round(float(np.linalg.norm(np.random.default_rng(seed).normal(size=1000))), 3)

if __name__ == '__main__':
    with ProcessPoolExecutor(2) as pool:
        print(list(pool.map(norm, range(4))) == [norm(seed) for seed in range(4)])
";
    assert_eq!(daemon.stdout(code(source)), "True\n");
}

#[test]
fn processes_share_memory_locks_and_queues() {
    let daemon = daemon!();
    let source = "\
import multiprocessing as mp
from multiprocessing import shared_memory

def add(name, lock, counter, queue):
    memory = shared_memory.SharedMemory(name)
    for _ in range(100):
        with lock:
            memory.buf[0] += 1
            counter.value += 1
    memory.close()
    queue.put('done')

if __name__ == '__main__':
    memory = shared_memory.SharedMemory(create=True, size=1 << 20)
    lock, counter, queue = mp.Lock(), mp.Value('i', 0), mp.Queue()
    workers = [mp.Process(target=add, args=(memory.name, lock, counter, queue)) for _ in range(2)]
    for worker in workers: worker.start()
    print([queue.get(timeout=20) for _ in workers])
    for worker in workers: worker.join()
    print(memory.buf[0], counter.value, [worker.exitcode for worker in workers])
    memory.close()
    memory.unlink()
";
    let outcome = daemon.run(small(source)).expect_success();
    assert_eq!(outcome.stdout(), "['done', 'done']\n200 200 [0, 0]\n");
    assert_eq!(outcome.stderr(), "");
}

#[test]
fn asyncio_starts_and_awaits_programs() {
    let daemon = daemon!();
    let source = "\
import asyncio

async def run(*argv):
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return process.returncode, out.decode().strip()

print(await asyncio.gather(run('echo', 'a'), run('sh', '-c', 'sleep 0.1; echo b; exit 4')))
";
    assert_eq!(daemon.stdout(small(source)), "[(0, 'a'), (4, 'b')]\n");
}

#[test]
fn a_server_on_the_loopback_can_be_asked() {
    let daemon = daemon!();
    let source = "\
import http.server, threading, urllib.request

class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'hello from ' + self.path.encode())
    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Hello)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/x').read().decode())
server.shutdown()
";
    assert_eq!(daemon.stdout(small(source)), "hello from /x\n");
}

#[test]
fn joblib_and_scikit_learn_work_in_parallel() {
    let daemon = daemon!();
    let source = "\
import numpy as np
from joblib import Parallel, delayed
from sklearn.ensemble import RandomForestClassifier

print(Parallel(n_jobs=2)(delayed(pow)(x, 2) for x in range(4)))
rng = np.random.default_rng(0)
X = rng.normal(size=(200, 3))
model = RandomForestClassifier(20, n_jobs=-1, random_state=0).fit(X, X[:, 0] > 0)
print(model.score(X, X[:, 0] > 0))
";
    let outcome = daemon.run(code(source)).expect_success();
    assert_eq!(
        (outcome.stdout(), outcome.stderr()),
        ("[0, 1, 4, 9]\n1.0\n".to_owned(), String::new())
    );
}

#[test]
fn processes_that_outlive_the_program_end_with_it() {
    let daemon = daemon!();
    let source = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\nprint('left')";
    let outcome = daemon.run(small(source)).expect_success();
    assert_eq!(outcome.stdout(), "left\n");
    assert!(outcome.result.duration.as_ref().unwrap().seconds < 10);
}
