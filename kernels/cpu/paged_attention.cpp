// The call for paged attention alone: threads share out the tasks of attention.hpp.

#include <atomic>

#include "attention.hpp"

extern "C" int batchscope_paged_attention(const AttentionArgs* args) {
    const AttentionArgs& a = *args;
    if (int wrong = check(a)) return wrong;
    const std::vector<Task> tasks = attention_tasks(a);
    const int64_t count = int64_t(tasks.size());
    int64_t positions = 0;
    for (const Task& t : tasks) positions += int64_t(a.context_lens[t.sequence]) * t.count * t.kv_count;
    const int threads = positions * (a.heads / a.kv_heads) < 1024 ? 1 : int(std::min<int64_t>(a.threads, count));
    const auto attend_as = a.cache_dtype == BFLOAT16 ? attend<bf16> : attend<float>;
    std::atomic<int64_t> taken{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        static thread_local std::vector<Scratch> scratch;
        if (int(scratch.size()) < a.kv_heads) scratch.resize(a.kv_heads);
        // A thread takes its next task before it works on this one, so that it can prefetch across the border.
        for (int64_t i = taken++, next; i < count; i = next) {
            next = taken++;
            attend_as(a, tasks[i], next < count ? &tasks[next] : nullptr, scratch.data());
        }
    }
    return 0;
}
