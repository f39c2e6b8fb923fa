// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/detached_jobs.h"

#include <chrono>
#include <utility>

#include "absl/time/time.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "coordinator/service/job_events.h"

namespace ringfleet::coordinator {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kSave{1};
// As JobTable::Limits has it.
constexpr absl::Duration kMostAge = absl::Hours(24);

// Jobs that ended before this are forgotten.
int64_t OldestKept(const Store& store) {
  return absl::ToUnixMillis(store.now() - kMostAge);
}

v1::StoredTokens TokensOf(const std::vector<DrawnToken>& tokens) {
  v1::StoredTokens stored;
  for (const DrawnToken& token : tokens) {
    v1::StoredTokens::Token* const one = stored.add_tokens();
    one->set_id(token.id);
    one->set_logprob(token.logprob);
    for (const DrawnToken::Likely& likely : token.top) {
      one->mutable_top()->add_ids(likely.id);
      one->mutable_top()->add_logprobs(likely.logprob);
    }
  }
  return stored;
}

v1::StoredJob::End EndOf(const Job& job, const JobProgress& progress) {
  v1::StoredJob::End end;
  if (progress.started != absl::InfiniteFuture()) {
    end.set_started_unix_ms(absl::ToUnixMillis(progress.started));
  }
  end.set_ended_unix_ms(absl::ToUnixMillis(progress.ended));
  end.set_reason(progress.reason);
  *end.mutable_timings() = TimingsOf(progress.timings, /*load_ms=*/0);
  end.set_error_code(static_cast<uint32_t>(progress.error.code()));
  end.set_error(std::string(progress.error.message()));
  *end.mutable_score() = job.score();
  return end;
}

}  // namespace

DetachedJobs::DetachedJobs(Store* store, std::function<bool()> stopping)
    : store_(store),
      stopping_jobs_(std::move(stopping)),
      thread_([this] { Loop(); }) {}

DetachedJobs::~DetachedJobs() { Stop(); }

void DetachedJobs::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::vector<DetachedJobs::Kept>> DetachedJobs::Load() {
  RF_RETURN_IF_ERROR(
      store_->WriteNow([oldest = OldestKept(*store_)](Database& database) {
        return DeleteOldDetached(database, oldest);
      }));
  std::vector<DetachedRecord> records;
  RF_RETURN_IF_ERROR(store_->Read([&records](Database& database) {
    RF_ASSIGN_OR_RETURN(records, ListDetached(database));
    return absl::OkStatus();
  }));
  std::vector<Kept> jobs;
  for (const DetachedRecord& record : records) {
    Kept kept;
    kept.id = record.id;
    if (!kept.job.ParseFromString(record.job)) {
      RF_LOG(kWarning, "job ", record.id, ": its record cannot be read");
      continue;
    }
    for (const std::string& part : record.tokens) {
      v1::StoredTokens tokens;
      if (!tokens.ParseFromString(part)) break;
      for (const v1::StoredTokens::Token& token : tokens.tokens()) {
        DrawnToken drawn = {
            .id = token.id(), .logprob = token.logprob(), .top = {}};
        for (int i = 0; i < token.top().ids_size(); ++i) {
          drawn.top.push_back(
              {.id = token.top().ids(i), .logprob = token.top().logprobs(i)});
        }
        kept.tokens.push_back(std::move(drawn));
      }
    }
    jobs.push_back(std::move(kept));
  }
  return jobs;
}

void DetachedJobs::Keep(const std::shared_ptr<Job>& job,
                        v1::StoredJob stored_job, Store::Done done) {
  DetachedRecord record;
  record.id = job->id();
  record.created_ms = stored_job.created_unix_ms();
  record.job = stored_job.SerializeAsString();
  store_->WriteSoon(
      [record](Database& database) { return PutDetached(database, record); },
      [this, job, stored_job = std::move(stored_job),
       done = std::move(done)](const absl::Status& status) {
        if (status.ok()) GoOn(job, stored_job, /*stored=*/0);
        done(status);
      });
}

void DetachedJobs::GoOn(const std::shared_ptr<Job>& job,
                        v1::StoredJob stored_job, size_t stored) {
  MutexLock lock(&mu_);
  followed_[job->id()] = {job, std::move(stored_job), stored};
}

absl::Status DetachedJobs::NoteCancelled(const std::string& id) {
  DetachedRecord record;
  {
    MutexLock lock(&mu_);
    const auto it = followed_.find(id);
    if (it == followed_.end()) return absl::OkStatus();  // It has ended.
    v1::StoredJob& job = it->second.stored_job;
    job.mutable_end()->set_ended_unix_ms(store_->now_ms());
    job.mutable_end()->set_error_code(
        static_cast<uint32_t>(absl::StatusCode::kCancelled));
    job.mutable_end()->set_error("the job was cancelled");
    record.id = id;
    record.created_ms = job.created_unix_ms();
    record.ended_ms = job.end().ended_unix_ms();
    record.job = job.SerializeAsString();
  }
  return store_->WriteNow(
      [record](Database& database) { return PutDetached(database, record); });
}

void DetachedJobs::Remove(const std::string& id) {
  {
    MutexLock lock(&mu_);
    followed_.erase(id);
  }
  store_->Write(
      [id](Database& database) { return DeleteDetached(database, id); },
      [](const absl::Status&) {});
}

void DetachedJobs::Save(Followed& followed) {
  if (followed.writing && !stopping_) return;
  const std::shared_ptr<Job> job = followed.job;
  // Read before the tokens: an end that is seen has all of them. Asked after
  // it: a job that fails because the coordinator stops has not ended.
  const JobProgress progress = job->progress();
  const bool ended =
      progress.has_ended() &&
      (!stopping_jobs_() || !absl::IsUnavailable(progress.error));
  const std::vector<DrawnToken> tokens = job->TokensFrom(followed.stored);
  if (tokens.empty() && !ended) return;
  DetachedRecord record;
  record.id = job->id();
  record.created_ms = followed.stored_job.created_unix_ms();
  if (ended) {
    *followed.stored_job.mutable_end() = EndOf(*job, progress);
    record.ended_ms = followed.stored_job.end().ended_unix_ms();
    record.job = followed.stored_job.SerializeAsString();
  }
  followed.writing = true;
  store_->Write(
      [record, first = static_cast<int64_t>(followed.stored),
       bytes = TokensOf(tokens).SerializeAsString(), any = !tokens.empty(),
       oldest = OldestKept(*store_), ended](Database& database) {
        if (any) {
          RF_RETURN_IF_ERROR(
              PutDetachedTokens(database, record.id, first, bytes));
        }
        if (!ended) return absl::OkStatus();
        RF_RETURN_IF_ERROR(DeleteOldDetached(database, oldest));
        return PutDetached(database, record);
      },
      [this, id = job->id(), count = tokens.size(),
       ended](const absl::Status& status) {
        MutexLock lock(&mu_);
        const auto it = followed_.find(id);
        if (it == followed_.end()) return;
        it->second.writing = false;
        if (!status.ok()) return;
        it->second.stored += count;
        if (ended) followed_.erase(it);
      });
}

void DetachedJobs::Loop() {
  MutexLock lock(&mu_);
  while (true) {
    const auto next = Clock::now() + kSave;
    while (!stopping_ && changed_.WaitUntil(&mu_, next)) {
    }
    // Also where Stop came before this thread: tokens may be there.
    for (auto& [id, followed] : followed_) Save(followed);
    if (stopping_) return;
  }
}

}  // namespace ringfleet::coordinator
