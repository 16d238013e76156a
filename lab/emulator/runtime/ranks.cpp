// A block comes after all that lead to it, a loop's way back aside; what follows a loop comes after
// all of the loop. Of several that could come next, the one that stands first in the code.
#include <algorithm>

#include "flow.h"

namespace emulator {

// One frame's blocks, known by their index in it.
struct Ordering {
  using List = std::vector<uint16_t>;
  const Frame& frame;
  std::vector<List> next, last, after;    // after: all that must come after a block
  std::vector<std::pair<int, int>> back;  // ways from the end of a loop to its head
  std::vector<unsigned> waits;            // for how many blocks one must still wait

  explicit Ordering(const Frame& of) : frame(of) {
    const size_t count = of.blocks.size();
    next.resize(count);
    last.resize(count);
    after.resize(count);
    waits.resize(count);
    for (uint16_t from = 0; from < count; ++from) {
      for (const uint16_t number : code[of.blocks[from]].next) {
        const uint16_t to = code[number].index;
        next[from].push_back(to);
        last[to].push_back(from);
      }
    }
  }

  CodeBlock& block(uint16_t index) const { return code[frame.blocks[index]]; }

  void must_precede(uint16_t first, uint16_t second) {
    after[first].push_back(second);
    ++waits[second];
  }

  // Depth first. A way to a block on the path so far goes back.
  void find_ways_back(uint16_t start, std::vector<char>& is_seen) {
    std::vector<std::pair<uint16_t, size_t>> path = {{start, 0}};
    std::vector<char> is_on_path(next.size());
    is_seen[start] = is_on_path[start] = true;
    while (!path.empty()) {
      const uint16_t from = path.back().first;
      if (path.back().second == next[from].size()) {
        is_on_path[from] = false;
        path.pop_back();
        continue;
      }
      const uint16_t to = next[from][path.back().second++];
      if (is_on_path[to])
        back.push_back({from, to});
      else
        must_precede(from, to);
      if (is_seen[to]) continue;
      is_seen[to] = is_on_path[to] = true;
      path.push_back({to, 0});
    }
  }

  // A loop: its head, and all from which its end is reached without the head.
  List loop_of(uint16_t end, uint16_t head) const {
    List loop = {head};
    if (end != head) loop.push_back(end);
    for (size_t i = 1; i < loop.size(); ++i) {
      for (const uint16_t from : last[loop[i]]) {
        if (std::find(loop.begin(), loop.end(), from) == loop.end()) loop.push_back(from);
      }
    }
    return loop;
  }

  // A loop's condition stands at its head or at its end. What it leaves for comes after the loop.
  void find_exits(uint16_t end, uint16_t head) {
    const List loop = loop_of(end, head);
    for (const uint16_t condition : {end, head}) {
      for (const uint16_t exit : next[condition]) {
        if (std::find(loop.begin(), loop.end(), exit) != loop.end()) continue;
        for (const uint16_t each : loop) must_precede(each, exit);
      }
    }
  }

  void rank_all() {
    List left(next.size());
    for (uint16_t i = 0; i < left.size(); ++i) left[i] = i;
    const auto is_first = [this](uint16_t a, uint16_t b) {
      return block(a).place < block(b).place;
    };
    std::sort(left.begin(), left.end(), is_first);
    const auto is_free = [this](uint16_t index) { return waits[index] == 0; };
    for (unsigned rank = 0; !left.empty(); ++rank) {
      auto chosen = std::find_if(left.begin(), left.end(), is_free);
      if (chosen == left.end()) chosen = left.begin();  // no order fits: as in the code
      block(*chosen).rank = rank;
      for (const uint16_t each : after[*chosen]) --waits[each];
      left.erase(chosen);
    }
  }
};

void order_blocks_of(const Frame& frame) {
  Ordering ordering(frame);
  std::vector<char> is_seen(frame.blocks.size());
  for (uint16_t start = 0; start < is_seen.size(); ++start) {
    if (!is_seen[start]) ordering.find_ways_back(start, is_seen);
  }
  for (const auto& [end, head] : ordering.back) ordering.find_exits(end, head);
  ordering.rank_all();
}

}  // namespace emulator
