// SPDX-License-Identifier: Apache-2.0
// The blocks of one data group's latent cache, as the coordinator counts them
// (PagedAttention, arXiv:2309.06180), and the prefixes that their rows hold
// (RadixAttention, arXiv:2312.07104, with a block for each node).
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_BLOCK_CACHE_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_BLOCK_CACHE_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "coordinator/scheduling/evaluated_spans.h"

namespace ringfleet::coordinator {

// Numbers blocks from 0. A block is free, in use by sequences, or kept: no
// sequence uses it, but its rows may serve a later one. Kept blocks are taken
// when no free one is left, least recently used first.
//
// Blocks with rows are nodes of a tree for each salt. A node holds up to a
// block of ids. Its path from the root is the text before them. Only a full
// node has children. Ids are compared, not only their hashes, so no two texts
// are taken for one. Not thread-safe.
class BlockCache {
 public:
  // Returns the id at a position of a sequence.
  using IdAt = absl::FunctionRef<uint32_t(uint32_t position)>;

  struct Node;

  static constexpr uint32_t kLeastPrefix = 16;

  // Rows that a sequence can reuse. Valid until the cache changes.
  struct Prefix {
    std::vector<Node*> whole;  // Full blocks, in order.
    Node* part = nullptr;  // Null, or the block that begins with the next ids.
    uint32_t part_positions = 0;
    uint32_t kept = 0;  // Blocks of `whole` that nobody uses.

    uint32_t positions() const;
    uint32_t part_block() const;  // Requires `part`.
  };

  // The blocks of one sequence. Ends with Leave.
  struct Table {
    std::vector<uint32_t> blocks;  // In order.
    std::vector<Node*> path;       // Nodes in use, by block.
    std::string salt;
    uint32_t indexed = 0;  // Positions whose ids the tree holds.
    bool closed = false;   // The tree takes no more of the sequence's ids.
  };

  explicit BlockCache(uint32_t blocks);
  ~BlockCache();
  BlockCache(BlockCache&&) noexcept;
  BlockCache& operator=(BlockCache&&) noexcept;

  // Returns the longest reusable prefix of a sequence, of at most `most`
  // positions. Positions within `repeated` must have been evaluated in the
  // same form. A prefix of less than kLeastPrefix positions is not worth its
  // copy: most texts begin with one token.
  Prefix Find(const std::string& salt, uint32_t most, IdAt id_at,
              const EvaluatedSpans& repeated) const;

  // Begins `table` with the blocks of a prefix. If the prefix has a part, the
  // block behind is taken for its copy. Leaves the part out if nothing but the
  // part can be taken. Appends the forms of the prefix's rows to `spans`.
  // Returns the number of rows.
  uint32_t Enter(const std::string& salt, const Prefix& prefix, Table* table,
                 EvaluatedSpans* spans);

  // Takes `count` blocks and appends them to the table. Requires count <=
  // available().
  void Take(uint32_t count, Table* table);

  // Adds the ids of the table's positions up to `end` to the tree. Their rows
  // must be in the cache before any later plan. Requires blocks for `end`
  // positions, and their forms in `spans`.
  void Index(uint32_t end, IdAt id_at, const EvaluatedSpans& spans,
             Table* table);

  // Takes the rows of all of the table's blocks, and those that were computed
  // behind them, out of the tree. They may be faulty.
  void Discard(Table* table);

  // Gives the table's blocks back. Those in the tree are kept.
  void Leave(Table* table);

  // Returns how many blocks can be taken: free and kept ones.
  uint32_t available() const {
    return static_cast<uint32_t>(free_.size() + kept_.size());
  }
  uint32_t kept() const { return static_cast<uint32_t>(kept_.size()); }
  uint32_t total() const { return static_cast<uint32_t>(nodes_.size()); }

 private:
  using Children = std::vector<Node*>;

  Children* ChildrenOf(const Table& table, size_t index);
  void Pin(Node* node);
  void Unpin(Node* node);
  // Takes the node and all behind it out of the tree.
  void Unlist(Node* node);
  // Removes a node that nobody uses, and frees its block.
  void Remove(Node* node);
  // Replaces the table's last node, which is full, by an equal one, if there is
  // one, so that later sequences find one path.
  void Merge(Table* table);

  std::map<std::string, Children> roots_;     // By salt.
  std::vector<std::unique_ptr<Node>> nodes_;  // By block; null: in no tree.
  std::vector<uint32_t> free_;  // The next one to take is the last.
  std::list<Node*> kept_;       // Least recently used first.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_BLOCK_CACHE_H_
