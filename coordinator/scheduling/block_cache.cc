// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/block_cache.h"

#include <algorithm>
#include <utility>

#include "kernels/attention/latent_cache.h"
#include "kernels/check.h"

namespace ringfleet::coordinator {
namespace {

constexpr auto kBlock = static_cast<uint32_t>(kernels::kCacheBlockPositions);

}  // namespace

struct BlockCache::Node {
  uint32_t block = 0;
  uint32_t users = 0;      // Tables whose path has the node.
  bool listed = true;      // In the tree.
  Node* parent = nullptr;  // Null: a child of the root.
  std::string salt;        // Set in a child of the root.
  std::vector<uint32_t> ids;
  EvaluatedSpans spans;  // The forms of `ids`.
  std::vector<Node*> children;
  std::list<Node*>::iterator place;  // In kept_, if there are no users.
};

uint32_t BlockCache::Prefix::positions() const {
  return static_cast<uint32_t>(whole.size()) * kBlock + part_positions;
}

uint32_t BlockCache::Prefix::part_block() const { return part->block; }

BlockCache::BlockCache(uint32_t blocks) : nodes_(blocks) {
  free_.reserve(blocks);
  for (uint32_t block = blocks; block-- > 0;) free_.push_back(block);
}

BlockCache::~BlockCache() = default;
BlockCache::BlockCache(BlockCache&&) noexcept = default;
BlockCache& BlockCache::operator=(BlockCache&&) noexcept = default;

BlockCache::Prefix BlockCache::Find(const std::string& salt, uint32_t most,
                                    IdAt id_at,
                                    const EvaluatedSpans& repeated) const {
  Prefix prefix;
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return prefix;
  const Children* children = &root->second;
  for (uint32_t begin = 0; begin < most; begin += kBlock) {
    prefix.part = nullptr;
    prefix.part_positions = 0;
    for (Node* node : *children) {
      const uint32_t end = std::min<uint32_t>(
          {most - begin, kBlock, static_cast<uint32_t>(node->ids.size())});
      uint32_t equal = 0;
      while (
          equal < end && node->ids[equal] == id_at(begin + equal) &&
          (begin + equal >= repeated.size() ||
           node->spans.From(equal).form == repeated.From(begin + equal).form)) {
        ++equal;
      }
      if (equal > prefix.part_positions) {
        prefix.part = node;
        prefix.part_positions = equal;
      }
    }
    if (prefix.part_positions < kBlock) break;
    prefix.whole.push_back(prefix.part);
    prefix.kept += prefix.part->users == 0 ? 1 : 0;
    children = &prefix.part->children;
    prefix.part = nullptr;
    prefix.part_positions = 0;
  }
  if (prefix.positions() < kLeastPrefix) return {};
  return prefix;
}

uint32_t BlockCache::Enter(const std::string& salt, const Prefix& prefix,
                           Table* table, EvaluatedSpans* spans) {
  table->salt = salt;
  for (Node* node : prefix.whole) {
    Pin(node);
    table->blocks.push_back(node->block);
    table->path.push_back(node);
    spans->Append(node->spans, 0, kBlock);
  }
  table->indexed = static_cast<uint32_t>(prefix.whole.size()) * kBlock;
  if (prefix.part == nullptr) return table->indexed;
  // The block must not be taken for its own copy.
  Pin(prefix.part);
  const bool copies = available() > 0;
  if (copies) {
    spans->Append(prefix.part->spans, 0, prefix.part_positions);
    Take(1, table);
  }
  Unpin(prefix.part);
  return table->indexed + (copies ? prefix.part_positions : 0);
}

void BlockCache::Take(uint32_t count, Table* table) {
  RF_CHECK(count <= available());
  for (uint32_t i = 0; i < count; ++i) {
    if (free_.empty()) {
      // A table leaves from its end, so a node is kept after all behind it, and
      // the first node has none behind it.
      Unlist(kept_.front());
    }
    table->blocks.push_back(free_.back());
    free_.pop_back();
  }
}

BlockCache::Children* BlockCache::ChildrenOf(const Table& table, size_t index) {
  return index == 0 ? &roots_[table.salt] : &table.path[index - 1]->children;
}

void BlockCache::Index(uint32_t end, IdAt id_at, const EvaluatedSpans& spans,
                       Table* table) {
  while (!table->closed && table->indexed < end) {
    if (!table->path.empty() && !table->path.back()->listed) {
      table->closed = true;
      return;
    }
    const uint32_t index = table->indexed / kBlock;
    const uint32_t last = std::min(end, (index + 1) * kBlock);
    if (table->path.size() == index) {
      auto node = std::make_unique<Node>();
      node->block = table->blocks[index];
      node->users = 1;
      if (index == 0) {
        node->salt = table->salt;
      } else {
        node->parent = table->path[index - 1];
      }
      ChildrenOf(*table, index)->push_back(node.get());
      table->path.push_back(node.get());
      nodes_[node->block] = std::move(node);
    }
    Node& node = *table->path[index];
    while (table->indexed < last) node.ids.push_back(id_at(table->indexed++));
    node.spans.Append(spans, index * kBlock + node.spans.size(),
                      table->indexed);
    if (node.ids.size() == kBlock) Merge(table);
  }
}

void BlockCache::Merge(Table* table) {
  const size_t index = table->path.size() - 1;
  Node* const node = table->path[index];
  const Children& siblings = *ChildrenOf(*table, index);
  Node* equal = nullptr;
  std::vector<Node*>
      covered;  // Nobody needs these: their ids begin the node's.
  for (Node* sibling : siblings) {
    if (sibling == node) continue;
    if (sibling->ids == node->ids && sibling->spans == node->spans) {
      equal = sibling;
    } else if (sibling->users == 0 && sibling->ids.size() < kBlock &&
               std::equal(sibling->ids.begin(), sibling->ids.end(),
                          node->ids.begin())) {
      covered.push_back(sibling);
    }
  }
  for (Node* sibling : covered) Unlist(sibling);
  if (equal == nullptr) return;
  Pin(equal);
  table->path[index] = equal;
  Unlist(node);
  nodes_[node->block] = nullptr;  // The block is the table's alone.
}

void BlockCache::Discard(Table* table) {
  table->closed = true;
  if (!table->path.empty()) Unlist(table->path.front());
}

void BlockCache::Leave(Table* table) {
  for (size_t i = table->blocks.size(); i-- > 0;) {
    const uint32_t block = table->blocks[i];
    const bool own = i >= table->path.size() || table->path[i]->block != block;
    if (i < table->path.size()) Unpin(table->path[i]);
    if (own) free_.push_back(block);
  }
  *table = Table();
}

void BlockCache::Pin(Node* node) {
  if (node->users++ == 0) kept_.erase(node->place);
}

void BlockCache::Unpin(Node* node) {
  RF_CHECK(node->users > 0);
  if (--node->users > 0) return;
  node->place = kept_.insert(kept_.end(), node);
  if (!node->listed) Remove(node);
}

void BlockCache::Unlist(Node* node) {
  if (node->listed) {
    node->listed = false;
    Children* siblings =
        node->parent == nullptr ? &roots_[node->salt] : &node->parent->children;
    siblings->erase(std::find(siblings->begin(), siblings->end(), node));
    if (node->parent == nullptr && siblings->empty()) roots_.erase(node->salt);
  }
  while (!node->children.empty()) Unlist(node->children.back());
  if (node->users == 0) Remove(node);
}

void BlockCache::Remove(Node* node) {
  kept_.erase(node->place);
  free_.push_back(node->block);
  nodes_[node->block] = nullptr;
}

}  // namespace ringfleet::coordinator
