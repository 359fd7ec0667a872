#!/bin/sh
# Runs one part of a bundle on a machine with a GPU: ./run.sh tests | promises | limits | explain | sanitize | losses | bench | graphs |
# replays | ranks | first
#
# It needs a driver and CUDA's libraries, and no Rust. PLIMSOLL_CUDA_LIBRARIES names their folders where they are in an
# unusual place; PLIMSOLL_TEST_DEVICE another GPU than the first. A part ends with a table and a status that says whether
# all went well; what it printed is kept in out/.
#
#   tests [OP..]       every check of every op, or of those whose names begin so; several processes at a time
#   promises           pages, kernels and libraries, long sums, what a run is promised, and training; one after the other
#   limits             GPT-2 under limits, and recipes at their own size: planned, predicted and taken bytes, and the same bits, also
#                      eagerly and from programs with and without passes and CUDA graphs
#   explain            profiles of three recipes: the same bits and bytes, the pool's own count, and what recording costs
#   sanitize           compute-sanitizer's memcheck and racecheck on a sample of ops, and on kernels that are made for programs
#   losses             20 steps of three models from the same weights and data as PyTorch, which must be there
#   bench [WORKLOAD..] the benchmark, beside PyTorch if PLIMSOLL_PEER names torch_bench.py; each workload once with sums in
#                      one order, and once with sums in any order (--nondeterministic)
#   graphs             what the driver takes for modules and CUDA graphs, what comes back, and what launching costs
#   replays [WORKLOAD..] programs as CUDA graphs: the bits of launches, then the benchmark with graphs off and on
#   ranks              several ranks on one GPU: bits, bytes and the driver's count at every stage of ZeRO, and NCCL; a table at its end
#   first [WORKLOAD..] the first step from an empty cache of kernels, and from a full one

set -u
cd "$(dirname "$0")" || exit 2
here=$(pwd)
export PLIMSOLL_TEST_DEVICE="${PLIMSOLL_TEST_DEVICE:-cuda:0}"
export PLIMSOLL_GOLDEN="$here/values.json"
export PLIMSOLL_CACHE="${PLIMSOLL_CACHE:-$here/cache}"
export PYTHON="${PYTHON:-python3}"
PARALLEL="${PLIMSOLL_PARALLEL:-8}"
mkdir -p out

part="${1:-}"
[ $# -gt 0 ] && shift

# The ops of the suite, each once, or those whose names begin with one of the arguments.
ops() {
    # What is told of the registry as a whole is not about a GPU.
    ./registry --list 2>/dev/null | sed -n 's/::.*//p' | grep -vx registry | sort -u | {
        if [ $# -eq 0 ]; then
            cat
        else
            pattern=$(printf '%s|' "$@")
            grep -E "^(${pattern%|})"
        fi
    }
}

# Runs the command for each line of the input, several at a time, with its output in out/$1-LINE.txt.
for_each() {
    name="$1"
    export command="$2"
    export name
    xargs -P "$PARALLEL" -I '{}' sh -c '
        line="{}"
        # In a shell of its own, so that a command that exits has failed and not the one that tells of it.
        if (eval "$command") > "out/$name-$line.txt" 2>&1; then echo "ok     $line"; else echo "FAILED $line"; fi
    ' | sort -k2 | tee "out/$name.txt"
}

# Ends with the number of failures in the table.
conclude() {
    failed=$(grep -c '^FAILED' "out/$1.txt")
    total=$(wc -l < "out/$1.txt")
    echo "$1: $total parts, $failed failed"
    [ "$total" -gt 0 ] && [ "$failed" -eq 0 ]
}

# The benchmark's own lines that have $2 in them, as a table under the heading $1; PyTorch's figures beside them if it ran.
table() {
    printf '\n%s\n%-22s %12s %12s %8s %10s %10s\n' "$1" workload "Plimsoll ms" "PyTorch ms" ratio MiB "PyTorch"
    grep -F "$2" out/bench.jsonl | while read -r line; do
        workload=$(field workload "$line")
        peer=$(grep '"peer"' out/bench.jsonl | grep '"mode": "eager"' | grep -F "\"workload\": \"$workload\"" | head -n 1)
        # Of single ops PyTorch's program tells microseconds, as ours tells milliseconds for a thousand of them.
        peer_ms=$(field ms_median "$peer")
        [ -n "$peer_ms" ] || peer_ms=$(field us_per_op_fwd_bwd "$peer")
        echo "$workload $(field median_ms "$line") $(field peak_bytes "$line") ${peer_ms:--} $(field peak_allocated_mib "$peer")"
    done | awk '{
        ratio = $4 == "-" ? "-" : sprintf("%.3f", $2 / $4)
        peer = $4 == "-" ? "-" : sprintf("%.3f", $4)
        printf "%-22s %12.3f %12s %8s %10.0f %10s\n", $1, $2, peer, ratio, $3 / 1048576, $5 == "" ? "-" : sprintf("%.0f", $5)
    }'
}

# The value of a field of a JSON line.
field() {
    printf '%s' "$2" | sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\).*/\1/p"
}

case "$part" in
tests)
    # One thread each: what a kernel refuses is told to whoever waits for the GPU next.
    ops "$@" | for_each tests './registry "$line::" --test-threads 1'
    conclude tests
    ;;
promises)
    # One after the other, since they look at what the driver has free; one thread each, as in `tests`.
    PARALLEL=1
    export RUST_TEST_THREADS=1
    ls programs | for_each promises "./programs/\$line"
    conclude promises
    ;;
limits)
    PARALLEL=1
    printf '%s\n' limits recipes modes | for_each limits './programs/gpu_promises "$line"'
    cat out/limits-limits.txt out/limits-recipes.txt out/limits-modes.txt
    conclude limits
    ;;
explain)
    PARALLEL=1
    echo explain | for_each explain './programs/gpu_promises "$line"'
    cat out/explain-explain.txt
    conclude explain
    ;;
sanitize)
    # A sample of every family of kernels, forward and backward; the tool is slow, so each with one check, which must be
    # there: a name that fits no test would pass for the wrong reason.
    printf '%s\n' add sum softmax layer_norm batch_norm matmul linear sparse_cross_entropy linear_cross_entropy attention \
        adam lstm gru conv2d max_pool2d gather index_add cumsum sort concat dropout contiguous \
        attention::any_order index_add::any_order generated |
        for_each sanitize 'for tool in memcheck racecheck; do
            case "$line" in
            # Kernels that are made for programs: one random network of each kind and dtype, and CUDA graphs of them.
            generated) suite=./programs/fusion check= done="test result: ok. [1-9]" ;;
            *::*) suite=./registry check="$line" done="test $line .* ok" ;;
            *) suite=./registry check="$line::narrow_gradients" done="test $line::narrow_gradients .* ok" ;;
            esac
            PLIMSOLL_CHAINS=1 PLIMSOLL_CUDA_GRAPHS=1 compute-sanitizer --tool $tool --error-exitcode 9 $suite $check --test-threads 1 \
                > "out/sanitize-$tool-$line.txt" 2>&1 || exit 1
            grep -q "$done" "out/sanitize-$tool-$line.txt" || exit 1
            tail -n 1 "out/sanitize-$tool-$line.txt"
        done'
    conclude sanitize
    ;;
losses)
    ./programs/gpu_promises losses out/losses > out/losses-ours.txt && "$PYTHON" gpu_losses.py out/losses | tee out/losses.txt
    # The status of a pipe is that of its last command; a run that leaves the curve of PyTorch says FAIL.
    ! grep -q "FAIL" out/losses.txt && [ -s out/losses.txt ]
    ;;
bench)
    : > out/bench.jsonl
    status=0
    for workload in ${@:-mlp-784-1024-10-b512 mlp-deep-b4096 resnet50-b128 lstm-b256 gpt2-124m eager-ops}; do
        case "$workload" in
        mlp-784* | lstm*) tf32=--tf32 ;;
        *) tf32= ;;
        esac
        for order in "" --nondeterministic; do
            if ! ./programs/gpu_promises program bench "$workload" --device "$PLIMSOLL_TEST_DEVICE" --json $tf32 $order >> out/bench.jsonl; then
                echo "FAILED $workload $order"
                status=1
            fi
        done
        if [ -n "${PLIMSOLL_PEER:-}" ]; then
            "$PYTHON" "$PLIMSOLL_PEER" "$workload" eager >> out/bench.jsonl
        fi
    done
    cat out/bench.jsonl
    table "deterministic, as it is unless told otherwise" '"deterministic":true'
    table "with --nondeterministic" '"deterministic":false'
    exit $status
    ;;
graphs)
    ./graph_memory | tee out/graphs.txt
    ;;
replays)
    export RUST_TEST_THREADS=1
    status=0
    : > out/replays.jsonl
    for program in graph_functions graph_training; do
        ./programs/$program || status=1
    done
    # Two rounds in turn, so that what one run has over another shows beside what they differ by anyway; some two minutes.
    for workload in ${@:-mlp-784-1024-10-b512 mlp-deep-b4096 resnet50-b128 lstm-b256 gpt2-124m resnet50-b128@1 gpt2-124m@1}; do
        name="${workload%@*}"
        options=
        case "$workload" in *@*) options="--batch ${workload#*@}" ;; esac
        case "$workload" in mlp-784* | lstm*) options="$options --tf32" ;; esac
        times=
        for graphs in 0 1 0 1; do
            PLIMSOLL_CUDA_GRAPHS=$graphs ./programs/gpu_promises program bench "$name" \
                --device "$PLIMSOLL_TEST_DEVICE" --json $options > out/replay.json || status=1
            [ -s out/replay.json ] || status=1
            { echo "$workload with PLIMSOLL_CUDA_GRAPHS=$graphs"; cat out/replay.json; } >> out/replays.jsonl
            times="$times $(field median_ms "$(cat out/replay.json)") $(field peak_bytes "$(cat out/replay.json)")"
        done
        echo "$workload $times" | awk '{
            printf "%-22s launches %.3f %.3f ms, %.0f MiB; graphs %.3f %.3f ms, %.0f MiB\n",
                $1, $2, $6, $3 / 1048576, $4, $8, $5 / 1048576
        }'
    done
    exit $status
    ;;
ranks)
    # Kernels made for programs lie in memory that the driver takes 2 MiB at a time while they are there; without them its count is what
    # the pools and NCCL have, and the bits are the same.
    export PLIMSOLL_PASSES="${PLIMSOLL_PASSES:-0}"
    # Buffers of NCCL's channels are a quarter of what they are unless it is told so. Two ranks on one GPU are allowed since 2.30.
    export NCCL_BUFFSIZE="${NCCL_BUFFSIZE:-1048576}" NCCL_MULTI_RANK_GPU_ENABLE="${NCCL_MULTI_RANK_GPU_ENABLE:-1}"
    status=0
    # Ranks that wait for each other would wait for ever.
    timeout 60 ./programs/gpu_check nccl > out/ranks-nccl.txt 2>&1 || status=1
    timeout 240 ./programs/gpu_promises ranks > out/ranks.txt 2>&1 || status=1
    cat out/ranks-nccl.txt out/ranks.txt
    exit $status
    ;;
first)
    # The first step, kernels compiled: from an empty cache, and again from the one that this has filled.
    for workload in ${@:-gpt2-124m resnet50-b128 mlp-deep-b4096}; do
        empty=$(mktemp -d)
        for cache in empty full; do
            printf '%s, %s cache: ' "$workload" "$cache"
            PLIMSOLL_CACHE="$empty" ./programs/gpu_promises program bench "$workload" --device "$PLIMSOLL_TEST_DEVICE" --steps 3 \
                | grep -o '[0-9.]* ms the first' || echo FAILED
        done
        rm -rf "$empty"
    done | tee out/first.txt
    ! grep -q FAILED out/first.txt && [ -s out/first.txt ]
    ;;
*)
    sed -n '2,21s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
