//! What the driver takes of the GPU's memory for modules and for executables of CUDA graphs, what of it comes back, and what
//! launching costs. Prints a line for each measurement; nothing is asserted, because these are the driver's own figures.
//!
//! Needs a GPU with its driver:
//!
//! ```sh
//! cargo run --release -p plimsoll-cuda --example graph_memory
//! ```

#![allow(clippy::print_stdout, reason = "this is a program for the terminal")]

use std::error::Error;
use std::ffi::{CString, c_void};
use std::fmt::Write as _;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUmodule, CUresult,
    CUstream,
};
use plimsoll_cuda::Gpu;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// How many parameters a kernel has, as many as those of a fused elementwise one.
const N_PARAMS: usize = 16;

fn main() -> Outcome {
    let gpu = Gpu::open(0)?;
    // Whatever the driver makes for the first kernel and the first graph is not what is measured.
    let warm = Module::load(&gpu, 8)?;
    let stream = new_stream()?;
    drop(Executable::capture(stream, warm.function, 10)?);
    // Small ones first: what larger ones have left would serve them.
    segments(&gpu, stream, warm.function)?;
    modules(&gpu)?;
    executables(&gpu, stream, warm.function)?;
    many_executables(&gpu, stream, warm.function)?;
    launches(stream, warm.function)
}

fn ok(status: CUresult, call: &str) -> Outcome {
    match status {
        CUresult::CUDA_SUCCESS => Ok(()),
        _ => Err(format!("{call}: {status:?}").into()),
    }
}

/// The bytes that the driver counts as used.
fn used(gpu: &Gpu) -> Outcome<i64> {
    let memory = gpu.memory()?;
    Ok((memory.total - memory.free) as i64)
}

fn new_stream() -> Outcome<CUstream> {
    let mut stream = ptr::null_mut();
    // SAFETY: opening the GPU has made its context current on this thread.
    ok(unsafe { sys::cuStreamCreate(&raw mut stream, 1) }, "cuStreamCreate")?;
    Ok(stream)
}

/// A kernel that does next to nothing, in a module whose other entries are as long as real ones.
struct Module {
    module: CUmodule,
    function: CUfunction,
    n_bytes: usize,
    _gpu: Arc<Gpu>,
}

impl Module {
    fn load(gpu: &Arc<Gpu>, n_entries: usize) -> Outcome<Module> {
        let text = CString::new(source(n_entries))?;
        let mut module = ptr::null_mut();
        // SAFETY: the text is a whole module and ends in zero.
        ok(unsafe { sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()) }, "cuModuleLoadData")?;
        let (mut function, name) = (ptr::null_mut(), c"entry_0");
        // SAFETY: the module was just loaded, and the name ends in zero.
        let status = unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
        ok(status, "cuModuleGetFunction")?;
        Ok(Module { module, function, n_bytes: text.as_bytes().len(), _gpu: gpu.clone() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the module is loaded, and no kernel of it runs: every launch here is waited for.
        let _ = unsafe { sys::cuModuleUnload(self.module) };
    }
}

/// PTX with that many entries; each but the first is a long chain of multiplications.
fn source(n_entries: usize) -> String {
    let mut text = ".version 7.8\n.target sm_80\n.address_size 64\n".to_owned();
    for entry in 0..n_entries {
        let params: Vec<String> = (0..N_PARAMS).map(|param| format!(".param .u64 p{param}")).collect();
        let _ = writeln!(text, ".visible .entry entry_{entry}({}) {{", params.join(", "));
        text.push_str(".reg .u64 %a; .reg .f32 %f;\n");
        if entry > 0 {
            text.push_str("ld.param.u64 %a, [p0];\nld.global.f32 %f, [%a];\n");
            (0..2000).for_each(|_| text.push_str("fma.rn.f32 %f, %f, %f, %f;\n"));
            text.push_str("st.global.f32 [%a], %f;\n");
        }
        text.push_str("ret;\n}\n");
    }
    text
}

/// What modules take, and whether it comes back.
fn modules(gpu: &Arc<Gpu>) -> Outcome {
    let before = used(gpu)?;
    let mut loaded = Vec::new();
    for n in [1, 10, 50, 100] {
        while loaded.len() < n {
            loaded.push(Module::load(gpu, 4)?);
        }
        println!("modules: {n} of {} bytes of PTX take {} bytes", loaded[0].n_bytes, used(gpu)? - before);
    }
    drop(loaded);
    println!("modules: unloaded, {} bytes are left", used(gpu)? - before);
    Ok(())
}

/// A captured and instantiated graph.
struct Executable {
    graph: CUgraph,
    executable: CUgraphExec,
    stream: CUstream,
    n_nodes: usize,
}

impl Executable {
    fn capture(stream: CUstream, function: CUfunction, n_nodes: usize) -> Outcome<Executable> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is ours, and idle.
        ok(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }, "cuStreamBeginCapture")?;
        for _ in 0..n_nodes {
            launch(stream, function)?;
        }
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is being captured.
        ok(unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) }, "cuStreamEndCapture")?;
        let mut executable = ptr::null_mut();
        // SAFETY: the graph was just captured.
        ok(unsafe { sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0) }, "cuGraphInstantiate")?;
        let made = Executable { graph, executable, stream, n_nodes };
        made.run()?;
        Ok(made)
    }

    fn start(&self) -> Outcome {
        // SAFETY: the executable is alive.
        ok(unsafe { sys::cuGraphLaunch(self.executable, self.stream) }, "cuGraphLaunch")
    }

    fn run(&self) -> Outcome {
        self.start()?;
        wait(self.stream)
    }

    /// Gives every node its parameters anew; returns how many nodes there are.
    fn patch(&self, function: CUfunction) -> Outcome<usize> {
        let mut n_nodes = self.n_nodes;
        let mut nodes: Vec<CUgraphNode> = vec![ptr::null_mut(); n_nodes];
        // SAFETY: the list has room for as many nodes as the graph has.
        let status = unsafe { sys::cuGraphGetNodes(self.graph, nodes.as_mut_ptr(), &raw mut n_nodes) };
        ok(status, "cuGraphGetNodes")?;
        let values = [0u64; N_PARAMS];
        let mut params = addresses(&values);
        for &node in &nodes {
            // SAFETY: a structure of numbers and pointers, all of which may be zero.
            let mut described: CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
            described.func = function;
            [described.gridDimX, described.gridDimY, described.gridDimZ] = [1; 3];
            [described.blockDimX, described.blockDimY, described.blockDimZ] = [32, 1, 1];
            described.kernelParams = params.as_mut_ptr();
            // SAFETY: the node belongs to the graph that the executable was made from, and the kernel is the same.
            let status = unsafe {
                sys::cuGraphExecKernelNodeSetParams_v2(self.executable, node, &raw const described)
            };
            ok(status, "cuGraphExecKernelNodeSetParams")?;
        }
        Ok(n_nodes)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: both are alive, and nothing of them runs: every launch here is waited for.
        let _ = unsafe { (sys::cuGraphExecDestroy(self.executable), sys::cuGraphDestroy(self.graph)) };
    }
}

fn addresses(values: &[u64; N_PARAMS]) -> [*mut c_void; N_PARAMS] {
    std::array::from_fn(|param| ptr::from_ref(&values[param]).cast_mut().cast())
}

fn launch(stream: CUstream, function: CUfunction) -> Outcome {
    let values = [0u64; N_PARAMS];
    let mut params = addresses(&values);
    // SAFETY: the kernel has these parameters and reads none of them.
    let status = unsafe {
        sys::cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params.as_mut_ptr(), ptr::null_mut())
    };
    ok(status, "cuLaunchKernel")
}

fn wait(stream: CUstream) -> Outcome {
    // SAFETY: the stream is alive.
    ok(unsafe { sys::cuStreamSynchronize(stream) }, "cuStreamSynchronize")
}

/// What executables of a program's segments take that are alive together, and what launching them costs the host.
fn segments(gpu: &Gpu, stream: CUstream, function: CUfunction) -> Outcome {
    for n_nodes in [16, 128] {
        let before = used(gpu)?;
        let mut alive = Vec::new();
        for n in [8, 64, 512] {
            while alive.len() < n {
                alive.push(Executable::capture(stream, function, n_nodes)?);
            }
            println!("segments: {n} of {n_nodes} nodes take {} bytes", used(gpu)? - before);
        }
        let started = Instant::now();
        alive.iter().try_for_each(Executable::start)?;
        let issued = started.elapsed();
        wait(stream)?;
        println!(
            "segments: 512 of {n_nodes} nodes are launched in {issued:.1?}, done in {:.1?}",
            started.elapsed()
        );
    }
    Ok(())
}

/// What executables of several sizes take, and whether it comes back.
fn executables(gpu: &Gpu, stream: CUstream, function: CUfunction) -> Outcome {
    for n_nodes in [1, 10, 100, 500, 1000, 2000, 5000, 10_000] {
        let before = used(gpu)?;
        let started = Instant::now();
        let executable = Executable::capture(stream, function, n_nodes)?;
        let (made_in, taken) = (started.elapsed(), used(gpu)? - before);
        drop(executable);
        println!(
            "executable: {n_nodes} nodes take {taken} bytes, {:.0} a node; made in {made_in:.1?}; destroyed, {} bytes are left",
            taken as f64 / n_nodes as f64,
            used(gpu)? - before
        );
    }
    Ok(())
}

/// Whether executables that are alive together take as much each, and whether making and destroying many leaves anything.
fn many_executables(gpu: &Gpu, stream: CUstream, function: CUfunction) -> Outcome {
    let before = used(gpu)?;
    let mut alive = Vec::new();
    for n in [1, 2, 4, 8, 16] {
        while alive.len() < n {
            alive.push(Executable::capture(stream, function, 1000)?);
        }
        println!("executables: {n} of 1000 nodes take {} bytes", used(gpu)? - before);
    }
    drop(alive);
    println!("executables: destroyed, {} bytes are left", used(gpu)? - before);
    for n in [10, 100, 1000] {
        for _ in 0..n {
            drop(Executable::capture(stream, function, 200)?);
        }
        println!("executables: {n} made and destroyed one by one, {} bytes are left", used(gpu)? - before);
    }
    Ok(())
}

/// What launching costs the host and the GPU, one by one and as a graph, and what new parameters cost.
fn launches(stream: CUstream, function: CUfunction) -> Outcome {
    const N_NODES: usize = 1000;
    const N_ROUNDS: usize = 20;
    let per_node =
        |started: Instant| started.elapsed().as_nanos() as f64 / (N_NODES * N_ROUNDS) as f64 / 1000.0;
    let started = Instant::now();
    for _ in 0..N_ROUNDS * N_NODES {
        launch(stream, function)?;
    }
    let issued = per_node(started);
    wait(stream)?;
    println!("launches: {issued:.2} us each for the host, {:.2} us until done", per_node(started));
    let executable = Executable::capture(stream, function, N_NODES)?;
    let started = Instant::now();
    for _ in 0..N_ROUNDS {
        executable.run()?;
    }
    println!("replays: {:.2} us a node until done", per_node(started));
    let started = Instant::now();
    for _ in 0..N_ROUNDS {
        executable.patch(function)?;
    }
    println!("new parameters: {:.2} us a node", per_node(started));
    executable.run()
}
