//! Executables of the driver.
//!
//! A list is captured on a stream of its own, so that neither an error nor another thread's call can touch the compute stream: a
//! capture that fails leaves nothing behind. The mode is that of one thread, because other threads may map memory meanwhile.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUgraph, CUgraphExec, CUgraphNode, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus,
};

use super::context::{Context, check};
use super::dnn;
use crate::backend::{Backend, Executable, Launch, Launches};
use crate::error::{Error, Result};

/// An executable, the graph that it was made from, and the node of each launch.
pub(super) struct Captured {
    context: Arc<Context>,
    graph: CUgraph,
    executable: CUgraphExec,
    nodes: Vec<CUgraphNode>,
    /// What was captured of convolutions: an engine that was compiled for a plan goes with the plan.
    plans: Vec<Arc<dnn::Plan>>,
}

// SAFETY: handles of the driver's, which any thread may use, one at a time.
unsafe impl Send for Captured {}

/// Makes an executable of launches, which go through the back end and start nothing.
pub(super) fn capture(
    backend: &dyn Backend,
    context: &Arc<Context>,
    launches: &mut Launches,
) -> Result<Captured> {
    context.enter()?;
    let stream = CaptureStream::new(context)?;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is alive, and nothing is in it.
    check(unsafe { sys::cuStreamBeginCapture_v2(stream.stream, mode) }, "cuStreamBeginCapture")?;
    context.send_to(stream.stream);
    let nodes = (0..launches.len()).map(|number| {
        // SAFETY: nothing is started; whoever launches the executable vouches for the addresses.
        unsafe { launches.dispatch(number, backend) }?;
        stream.last_node()
    });
    let nodes: Result<Vec<CUgraphNode>> = nodes.collect();
    context.send_to(context.stream);
    let mut graph = ptr::null_mut();
    // SAFETY: the stream is capturing; the call ends that even if it fails, and writes one handle.
    let ended =
        check(unsafe { sys::cuStreamEndCapture(stream.stream, &raw mut graph) }, "cuStreamEndCapture");
    let (executable, nodes_before, plans) = (ptr::null_mut(), Vec::new(), Vec::new());
    let mut captured = Captured { context: context.clone(), graph, executable, nodes: nodes_before, plans };
    captured.nodes = nodes?;
    ended?;
    // SAFETY: the graph is alive; the call writes one handle.
    let made = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut captured.executable, graph, 0) };
    check(made, "cuGraphInstantiate")?;
    Ok(captured)
}

impl Captured {
    /// With these plans kept as long as the executable.
    pub fn keeping(self, plans: Vec<Arc<dnn::Plan>>) -> Captured {
        // A value with a `drop` cannot be taken apart.
        let mut captured = self;
        captured.plans = plans;
        captured
    }
}

/// A stream that lives as long as a capture.
struct CaptureStream<'a> {
    context: &'a Context,
    stream: CUstream,
}

impl CaptureStream<'_> {
    fn new(context: &Context) -> Result<CaptureStream<'_>> {
        Ok(CaptureStream { context, stream: context.new_stream()? })
    }

    /// The node of what was launched last; null where nothing has been.
    fn last_node(&self) -> Result<CUgraphNode> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph, mut last) = (0, ptr::null_mut(), ptr::null());
        let (mut edges, mut n_last) = (ptr::null(), 0);
        // SAFETY: the stream is capturing; the call writes one value through each pointer.
        let asked = unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                self.stream,
                &raw mut status,
                &raw mut id,
                &raw mut graph,
                &raw mut last,
                &raw mut edges,
                &raw mut n_last,
            )
        };
        check(asked, "cuStreamGetCaptureInfo")?;
        match (status, n_last) {
            (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE, 0) => Ok(ptr::null_mut()),
            // SAFETY: the driver says that there is one.
            (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE, 1) => Ok(unsafe { *last }),
            _ => Err(Error::new(format!("a capture is {status:?} with {n_last} ends instead of one"))),
        }
    }
}

impl Drop for CaptureStream<'_> {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: the stream is ours, and launches go to the compute stream again.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
    }
}

impl Executable for Captured {
    fn patch(&mut self, number: usize, launches: &mut Launches) -> Result<()> {
        let (Launch::Kernel { function, grid, .. }, mut params) = launches.get(number) else {
            return Err(Error::new("a launch without parameters cannot be patched"));
        };
        self.context.enter()?;
        let node = CUDA_KERNEL_NODE_PARAMS {
            func: ptr::with_exposed_provenance_mut(function.0),
            gridDimX: grid.blocks[0],
            gridDimY: grid.blocks[1],
            gridDimZ: grid.blocks[2],
            blockDimX: grid.threads[0],
            blockDimY: grid.threads[1],
            blockDimZ: 1,
            sharedMemBytes: grid.shared_bytes,
            kernelParams: params.as_mut_ptr(),
            extra: ptr::null_mut(),
            kern: ptr::null_mut(),
            ctx: ptr::null_mut(),
        };
        // SAFETY: the node is this launch's; its parameters are read during the call.
        let patched = unsafe {
            sys::cuGraphExecKernelNodeSetParams_v2(self.executable, self.nodes[number], &raw const node)
        };
        check(patched, "cuGraphExecKernelNodeSetParams")
    }

    fn launch(&mut self, _backend: &dyn Backend) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the executable is alive; whoever asked for the launches vouches for their addresses.
        check(unsafe { sys::cuGraphLaunch(self.executable, self.context.stream) }, "cuGraphLaunch")
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: the handles are ours; the driver keeps an executable that is running until it is done.
        unsafe {
            if !self.executable.is_null() {
                let _ = sys::cuGraphExecDestroy(self.executable);
            }
            if !self.graph.is_null() {
                let _ = sys::cuGraphDestroy(self.graph);
            }
        }
    }
}
