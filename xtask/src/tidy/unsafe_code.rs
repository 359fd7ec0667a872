//! `unsafe` stays where it belongs, and every use says why it is sound.
//!
//! The memory pool, the CUDA layer and the kernels need it; nothing above them does. Clippy refuses an `unsafe` block
//! without a comment; this rule asks the same of `impl`, `fn`, `trait`, `extern` and attributes, and of blocks in
//! macros that nobody expands.

use super::Finding;
use super::repo::Repo;
use super::source::Source;

/// Where library code may use `unsafe`. Tests may use it anywhere: a counting allocator cannot do without.
const HOMES: &[&str] = &[
    "crates/plimsoll-memory/",
    "crates/plimsoll-cpu/",
    "crates/plimsoll-cuda/",
    "crates/plimsoll-gemm/",
    // Kernels lie beside their op.
    "crates/plimsoll-tensor/src/ops/",
    // The places where the bytes of a block become a slice of elements.
    "crates/plimsoll-tensor/src/device/storage.rs",
    "crates/plimsoll-tensor/src/device/piece.rs",
    // Memory that another library lends, which that library has to promise.
    "crates/plimsoll-tensor/src/device/foreign.rs",
    "crates/plimsoll-tensor/src/io/borrowed.rs",
    // Streams that another library names, and its reading of memory.
    "crates/plimsoll-tensor/src/io/export.rs",
    // Capsules of DLPack are pointers, in both directions.
    "crates/plimsoll-python/src/dlpack.rs",
    // Frames of the interpreter are asked for in C, at every op.
    "crates/plimsoll-python/src/lines.rs",
    // MPI is a library of C functions, and sends numbers as bytes.
    "crates/plimsoll-dist/src/mpi.rs",
    "crates/plimsoll-dist/src/bytes.rs",
    // An allocator is unsafe to implement; this one counts for the tests.
    "crates/plimsoll-testkit/src/counting.rs",
];

/// Reports every `unsafe` that is out of place or gives no reason, and crates that do not forbid what they do not need.
pub fn check(repo: &Repo) -> Vec<Finding> {
    repo.sources
        .iter()
        .flat_map(|source| {
            out_of_place(source).into_iter().chain(unexplained(source)).chain(not_forbidden(source))
        })
        .collect()
}

/// The root of a crate without a home for `unsafe` must forbid it, so that the compiler says so and not only a text search.
fn not_forbidden(source: &Source) -> Option<Finding> {
    let (folder, file) = source.path.rsplit_once("src/")?;
    let is_root =
        (folder.starts_with("crates/") || folder == "xtask/") && (file == "lib.rs" || file == "main.rs");
    let has_home = HOMES.iter().any(|home| home.starts_with(folder));
    let message = "this crate needs no `unsafe`: say `#![forbid(unsafe_code)]` below its docs";
    (is_root && !has_home && !source.text.contains("#![forbid(unsafe_code)]"))
        .then(|| Finding::failure(&source.path, 1, message))
}

fn out_of_place(source: &Source) -> Vec<Finding> {
    if HOMES.iter().any(|home| source.path.starts_with(home)) {
        return Vec::new();
    }
    let report = |(offset, _)| {
        let message = "`unsafe` belongs to the memory pool, the CUDA layer and kernels: use their safe API";
        Finding::failure(&source.path, source.line_of(offset), message)
    };
    let is_stray = |&(offset, word): &(usize, &str)| word == "unsafe" && source.is_library(offset);
    source.words().filter(is_stray).map(report).collect()
}

fn unexplained(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let contracts = trait_impls(source);
    for (offset, _) in source.words().filter(|(_, word)| *word == "unsafe") {
        let line = source.line_of(offset);
        let after = source.code[offset + "unsafe".len()..].trim_start();
        let wanted = match what_follows(after) {
            Use::Pointer => continue,
            // The trait states the contract of its functions; an implementation cannot change it.
            Use::Function if contracts.iter().any(|(from, to)| (*from..*to).contains(&offset)) => continue,
            Use::Function => "a `# Safety` section that says what the caller must see to",
            Use::Proof => "a `// SAFETY:` comment directly above that says why it is sound",
        };
        if !is_explained(source, line) {
            findings.push(Finding::failure(&source.path, line, format!("`unsafe` needs {wanted}")));
        }
    }
    findings
}

/// What the word `unsafe` introduces.
enum Use {
    /// A function pointer's type, which promises nothing by itself.
    Pointer,
    /// A function or a trait: the caller or the implementor has something to see to.
    Function,
    /// A block, an implementation, an attribute, foreign items: whoever writes it has to be right.
    Proof,
}

/// Says what `unsafe` introduces when `code` follows it; strings, such as the name of an ABI, are blank there.
fn what_follows(code: &str) -> Use {
    let code = code.strip_prefix("extern").map_or(code, str::trim_start);
    match code.strip_prefix("fn").map(str::trim_start) {
        Some(rest) if rest.starts_with('(') => Use::Pointer,
        Some(_) => Use::Function,
        None if code.starts_with("trait") => Use::Function,
        None => Use::Proof,
    }
}

/// The spans of the file's `impl Trait for Type` blocks.
fn trait_impls(source: &Source) -> Vec<(usize, usize)> {
    let impls = source.words().filter(|(_, word)| *word == "impl").map(|(offset, _)| offset);
    let of_a_trait = impls.filter_map(|offset| {
        let open = offset + source.code[offset..].find('{')?;
        source.code[offset..open].contains(" for ").then(|| (open, source.closing_brace(open)))
    });
    of_a_trait.collect()
}

/// Tells whether the comment above the statement or item on `line` speaks of safety.
fn is_explained(source: &Source, line: usize) -> bool {
    let code: Vec<&str> = source.code.lines().take(line).map(str::trim).collect();
    let comments: Vec<&str> = source.comments.lines().take(line).map(str::trim).collect();
    for index in (0..line - 1).rev() {
        let speaks = comments[index].contains("SAFETY:") || comments[index].contains("# Safety");
        let (is_code, is_comment) = (!code[index].is_empty(), !comments[index].is_empty());
        // A statement may begin lines above its `unsafe`, and an item may have attributes between.
        let continues = !code[index].ends_with([';', '{', '}', ',']) || code[index].starts_with("#[");
        match (is_code, is_comment) {
            (false, true) if speaks => return true,
            (false, true) => {}
            (true, _) if continues => {}
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Repo::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    const POOL: &str = "crates/plimsoll-memory/src/pool.rs";

    #[test]
    fn library_code_uses_it_in_its_homes_only() {
        let text = "// SAFETY: the bytes are initialised.\nlet a = unsafe { b() };\n";
        assert_eq!(lines(POOL, text), [] as [usize; 0]);
        assert_eq!(lines("crates/plimsoll-tensor/src/device/storage.rs", text), [] as [usize; 0]);
        assert_eq!(lines("crates/plimsoll-tensor/tests/heap.rs", text), [] as [usize; 0]);
        assert_eq!(lines("crates/plimsoll-tensor/src/eager/tape.rs", text), [2]);
        assert_eq!(
            lines("crates/plimsoll-tensor/src/eager/tape.rs", "#![forbid(unsafe_code)] // unsafe\n"),
            [] as [usize; 0]
        );
    }

    #[test]
    fn a_crate_without_a_home_forbids_it() {
        assert_eq!(lines("crates/plimsoll-nn/src/lib.rs", "mod layers;\n"), [1]);
        assert_eq!(lines("xtask/src/main.rs", "mod check;\n"), [1]);
        assert_eq!(lines("crates/plimsoll-nn/src/lib.rs", "#![forbid(unsafe_code)]\n"), [] as [usize; 0]);
        assert_eq!(lines("crates/plimsoll-tensor/src/lib.rs", "mod storage;\n"), [] as [usize; 0]);
        assert_eq!(lines("crates/plimsoll-nn/src/layers/mod.rs", "mod dense;\n"), [] as [usize; 0]);
    }

    #[test]
    fn explained_uses_pass() {
        let text = "\
            // SAFETY: it holds no pointer\n// that another thread could follow.\n#[allow(a)]\n\
            unsafe impl Send for A {}\n\
            /// Reads.\n///\n/// # Safety\n/// `p` is valid.\n#[inline]\npub unsafe fn a(p: P) {}\n\
            // SAFETY: forwards to the system.\nunsafe impl GlobalAlloc for A {\n    unsafe fn alloc(&self) {}\n}\n\
            type F = unsafe extern \"C\" fn(u8);\n\
            // SAFETY: the slice is as long as the block.\nlet long_name =\n    unsafe { b() };\n";
        assert_eq!(lines(POOL, text), [] as [usize; 0]);
    }

    #[test]
    fn unexplained_uses_are_reported() {
        for text in [
            "unsafe impl Send for A {}\n",
            "unsafe fn a() {}\n",
            "unsafe extern \"C\" fn a() {}\n",
            "unsafe extern \"C\" {}\n",
            "unsafe trait A {}\n",
            "#[unsafe(no_mangle)]\n",
            "let a = unsafe { b() }; // SAFETY: beside, not above.\n",
            "impl A {}\nunsafe fn a() {}\n",
        ] {
            assert_eq!(lines(POOL, text), [text.lines().count()], "{text}");
        }
    }

    #[test]
    fn a_comment_speaks_for_what_is_directly_below() {
        let two = "// SAFETY: A is plain data.\nunsafe impl Send for A {}\nunsafe impl Sync for A {}\n";
        assert_eq!(lines(POOL, two), [3]);
        let far = "// SAFETY: A is plain data.\n\nunsafe impl Send for A {}\n";
        assert_eq!(lines(POOL, far), [3]);
    }
}
