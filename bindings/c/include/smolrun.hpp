// smolrun.hpp: smolrun.h for C++17, in this one file. Objects free themselves, and errors are exceptions.
//
//     auto model = smolrun::Model::open("smol.bin");
//     smolrun::Session session(model);
//     for (const auto &token : session.generate(model.encode_prompt("Once upon a time")))
//         std::cout << smolrun::text(token);
//
// What smolrun.h says of threads holds here, too. An object that was moved from can only be assigned to or destroyed.
#ifndef SMOLRUN_HPP
#define SMOLRUN_HPP

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "smolrun.h"

namespace smolrun {

/// What went wrong.
class Error : public std::runtime_error {
public:
    Error(smolrun_status status, const char *message) : std::runtime_error(message), status_(status) {}

    smolrun_status status() const noexcept { return status_; }
    /// Such as "blob.magic".
    const char *code() const noexcept { return smolrun_status_name(status_); }

private:
    smolrun_status status_;
};

using Ids = std::vector<std::uint32_t>;

/// The text of a token.
inline std::string_view text(const smolrun_token &token) { return {token.text, token.text_len}; }

namespace detail {

inline void check(smolrun_status status) {
    if (status != SMOLRUN_OK) throw Error(status, smolrun_last_error());
}

/// As C reads it: a NUL inside would end it there.
inline const char *c_str(const std::string &text) {
    if (text.find('\0') != std::string::npos) throw Error(SMOLRUN_ARGUMENT, "expected a text without NUL, found one inside");
    return text.c_str();
}

template <auto free> struct Free {
    template <typename T> void operator()(T *pointer) const noexcept { free(pointer); }
};

/// What `make` gives in its last parameter.
template <typename T, typename Make> T *made(Make make) {
    T *out = nullptr;
    check(make(&out));
    return out;
}

/// All that `fill(room, capacity, &len)` writes: at the first attempt where `guess` is enough.
template <typename Items, typename Fill> Items filled(std::size_t guess, Fill fill) {
    Items items(guess, {});
    std::size_t len = 0;
    smolrun_status status = fill(items.data(), items.size(), &len);
    if (status == SMOLRUN_TOO_SMALL) {
        items.resize(len + 1);
        status = fill(items.data(), items.size(), &len);
    }
    check(status);
    items.resize(len);
    return items;
}

/// Options of C with their defaults.
template <typename T> T defaults(smolrun_status (*init)(T *, std::size_t)) {
    T options;
    check(init(&options, sizeof options));
    return options;
}

} // namespace detail

inline smolrun_generate_options generate_options() { return detail::defaults(smolrun_generate_options_init); }
inline smolrun_session_options session_options() { return detail::defaults(smolrun_session_options_init); }
inline smolrun_chat_options chat_options() { return detail::defaults(smolrun_chat_options_init); }
inline smolrun_scheduler_options scheduler_options() { return detail::defaults(smolrun_scheduler_options_init); }

/// One message of a conversation.
struct Message {
    std::string role;
    std::string content;
};

/// An opened blob. Copies share it.
class Model {
public:
    /// Maps the blob at `path`, which nobody may change in place while it is open.
    static Model open(const std::string &path) {
        return Model(detail::made<smolrun_model>([&](auto out) { return smolrun_model_open(detail::c_str(path), out); }));
    }
    /// Reads the blob at `path` into memory.
    static Model read(const std::string &path) {
        return Model(detail::made<smolrun_model>([&](auto out) { return smolrun_model_read(detail::c_str(path), out); }));
    }
    /// Copies a blob from memory.
    static Model from_bytes(const void *bytes, std::size_t len) {
        auto make = [&](auto out) { return smolrun_model_from_bytes(bytes, len, out); };
        return Model(detail::made<smolrun_model>(make));
    }

    smolrun_model_info info() const {
        smolrun_model_info info{};
        info.size = sizeof info;
        detail::check(smolrun_model_info_get(get(), &info));
        return info;
    }
    /// Checks every checksum.
    void verify() const { detail::check(smolrun_model_verify(get())); }

    /// The tokens of a text alone.
    Ids tokenize(std::string_view text, bool special = false) const {
        return detail::filled<Ids>(text.size() + 2, [&](auto ids, auto capacity, auto len) {
            return smolrun_tokenize(get(), text.data(), text.size(), special, ids, capacity, len);
        });
    }
    /// The tokens of a text to be continued.
    Ids encode_prompt(std::string_view text, bool special = false) const {
        return detail::filled<Ids>(text.size() + 8, [&](auto ids, auto capacity, auto len) {
            return smolrun_encode_prompt(get(), text.data(), text.size(), special, ids, capacity, len);
        });
    }
    /// The tokens of a conversation, by the blob's chat template. A text with a NUL inside is an error here;
    /// smolrun_encode_chat_json() takes it.
    Ids encode_chat(const std::vector<Message> &messages, const smolrun_chat_options *options = nullptr) const {
        std::vector<smolrun_message> given;
        std::size_t bytes = 1024;
        for (const auto &[role, content] : messages) {
            given.push_back({detail::c_str(role), detail::c_str(content)});
            bytes += role.size() + content.size() + 64;
        }
        return detail::filled<Ids>(bytes, [&](auto ids, auto capacity, auto len) {
            return smolrun_encode_chat(get(), given.data(), given.size(), options, ids, capacity, len);
        });
    }
    std::string detokenize(const Ids &ids, bool skip_special = false) const {
        return detail::filled<std::string>(ids.size() * 8 + 16, [&](auto text, auto capacity, auto len) {
            return smolrun_detokenize(get(), ids.data(), ids.size(), skip_special, text, capacity, len);
        });
    }

    smolrun_model *get() const noexcept { return model_.get(); }

private:
    explicit Model(smolrun_model *model) : model_(model, detail::Free<smolrun_model_free>()) {}

    std::shared_ptr<smolrun_model> model_;
};

/// What ends generations from another thread or a signal handler: `options.cancel = token.get()`.
class CancelToken {
public:
    CancelToken() : token_(detail::made<smolrun_cancel_token>(smolrun_cancel_token_new)) {}

    void cancel() const noexcept { smolrun_cancel_token_cancel(get()); }
    bool is_cancelled() const noexcept { return smolrun_cancel_token_is_cancelled(get()) != 0; }
    void reset() const noexcept { smolrun_cancel_token_reset(get()); }
    smolrun_cancel_token *get() const noexcept { return token_.get(); }

private:
    std::unique_ptr<smolrun_cancel_token, detail::Free<smolrun_cancel_token_free>> token_;
};

/// What a session generates, token by token: for one loop. Each token is there until the next.
class Tokens {
public:
    class Iterator {
    public:
        explicit Iterator(smolrun_session *session) : session_(session) { ++*this; }
        Iterator() = default;

        const smolrun_token &operator*() const noexcept { return *token_; }
        const smolrun_token *operator->() const noexcept { return token_; }
        Iterator &operator++() {
            detail::check(smolrun_session_next(session_, &token_));
            return *this;
        }
        void operator++(int) { ++*this; }
        bool operator==(const Iterator &other) const noexcept { return token_ == other.token_; }
        bool operator!=(const Iterator &other) const noexcept { return token_ != other.token_; }

    private:
        smolrun_session *session_ = nullptr;
        const smolrun_token *token_ = nullptr;
    };

    explicit Tokens(smolrun_session *session) : session_(session) {}
    Iterator begin() const { return Iterator(session_); }
    Iterator end() const noexcept { return Iterator(); }

private:
    smolrun_session *session_;
};

/// One sequence of tokens over a model.
class Session {
public:
    explicit Session(const Model &model, const smolrun_session_options &options = session_options())
        : Session(detail::made<smolrun_session>(
              [&](auto out) { return smolrun_session_new(model.get(), &options, out); })) {}

    /// Another one that goes on from here.
    Session fork() const {
        return Session(detail::made<smolrun_session>([&](auto out) { return smolrun_session_fork(get(), out); }));
    }

    std::size_t position() const {
        std::size_t position = 0;
        detail::check(smolrun_session_position(get(), &position));
        return position;
    }
    Ids tokens() const {
        return detail::filled<Ids>(position(), [&](auto ids, auto capacity, auto len) {
            return smolrun_session_tokens(get(), ids, capacity, len);
        });
    }

    /// Appends tokens: the vocab_size logits after the last, which are there until the next call.
    const float *feed(const Ids &ids) {
        const float *logits = nullptr;
        detail::check(smolrun_session_feed(get(), ids.data(), ids.size(), &logits));
        return logits;
    }
    /// Forgets everything from where the sequence and `ids` begin to differ: how many tokens are left.
    std::size_t keep_common_prefix(const Ids &ids) {
        std::size_t kept = 0;
        detail::check(smolrun_session_keep_common_prefix(get(), ids.data(), ids.size(), &kept));
        return kept;
    }
    void truncate(std::size_t position) { detail::check(smolrun_session_truncate(get(), position)); }
    void save(const std::string &path) { detail::check(smolrun_session_save(get(), detail::c_str(path))); }
    void load(const std::string &path) { detail::check(smolrun_session_load(get(), detail::c_str(path))); }

    /// Generates what comes after `prompt`, which comes after what the session has.
    Tokens generate(const Ids &prompt, const smolrun_generate_options &options = generate_options()) {
        detail::check(smolrun_session_generate(get(), prompt.data(), prompt.size(), &options));
        return Tokens(get());
    }
    /// The same of a whole conversation or text: what the session has of it already is not computed again.
    Tokens generate_after(const Ids &ids, const smolrun_generate_options &options = generate_options()) {
        const std::size_t kept = keep_common_prefix(ids);
        detail::check(smolrun_session_generate(get(), ids.data() + kept, ids.size() - kept, &options));
        return Tokens(get());
    }
    /// Why the last generation ended, a smolrun_finish_reason.
    std::int32_t finish_reason() const {
        std::int32_t reason = 0;
        detail::check(smolrun_session_finish_reason(get(), &reason));
        return reason;
    }

    smolrun_session *get() const noexcept { return session_.get(); }

private:
    explicit Session(smolrun_session *session) : session_(session) {}

    std::unique_ptr<smolrun_session, detail::Free<smolrun_session_free>> session_;
};

/// Many requests at once.
class Scheduler {
public:
    explicit Scheduler(const Model &model, const smolrun_scheduler_options &options = scheduler_options())
        : scheduler_(detail::made<smolrun_scheduler>(
              [&](auto out) { return smolrun_scheduler_new(model.get(), &options, out); })) {}

    /// The request's number.
    std::uint64_t submit(const Ids &prompt, const smolrun_generate_options &options = generate_options(),
                         std::int8_t priority = 0) {
        std::uint64_t request = 0;
        detail::check(
            smolrun_scheduler_submit(get(), prompt.data(), prompt.size(), &options, priority, &request));
        return request;
    }
    /// The next thing that happened, there until the next call; null if there is nothing left to do.
    const smolrun_event *next() {
        const smolrun_event *event = nullptr;
        detail::check(smolrun_scheduler_next(get(), &event));
        return event;
    }

    smolrun_scheduler *get() const noexcept { return scheduler_.get(); }

private:
    std::unique_ptr<smolrun_scheduler, detail::Free<smolrun_scheduler_free>> scheduler_;
};

} // namespace smolrun

#endif // SMOLRUN_HPP
