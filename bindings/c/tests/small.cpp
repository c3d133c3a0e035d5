// On a stack of 1 MB and without any thread but this one: the caller sets the stack, `pthread_create` here the rest.
// usage: small CHAT_BLOB DIRECTORY
#include <cstdlib>
#include <iostream>
#include <pthread.h>
#include <smolrun.hpp>
#include <sys/resource.h>

extern "C" int pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) noexcept {
    std::cerr << "a thread was started\n";
    std::abort();
}

static void expect(bool is_right, const char *what) {
    if (is_right) return;
    std::cerr << "small: " << what << "\n";
    std::exit(1);
}

int main(int argc, char **argv) {
    expect(argc == 3, "usage: small CHAT_BLOB DIRECTORY");
    rlimit stack{};
    expect(getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur <= 1 << 20, "a stack of 1 MB");

    const auto model = smolrun::Model::open(argv[1]);
    auto how = smolrun::session_options();
    how.threads = 1;
    smolrun::Session session(model, how);
    const auto prompt = model.encode_chat({{"system", "Be short."}, {"user", std::string(500, 'x')}});
    auto options = smolrun::generate_options();
    options.max_tokens = 30, options.ignore_eos = 1;
    std::string told;
    for (const auto &token : session.generate_after(prompt, options)) told += smolrun::text(token);
    expect(session.finish_reason() == SMOLRUN_FINISH_LENGTH && !told.empty(), "an answer");

    const std::string path = std::string(argv[2]) + "/small-session";
    session.save(path);
    const auto tokens = session.tokens();
    auto other = session.fork();
    other.load(path);
    expect(other.tokens() == tokens, "a session that was saved");
    expect(std::remove(path.c_str()) == 0, "the saved session's file");

    auto sharing = smolrun::scheduler_options();
    sharing.threads = 1;
    smolrun::Scheduler scheduler(model, sharing);
    scheduler.submit(prompt, options);
    std::string together;
    while (const auto *event = scheduler.next())
        if (event->token) together += smolrun::text(*event->token);
    expect(together == told, "the same from the scheduler");

    try {
        smolrun::Model::open("/no such blob");
        expect(false, "an exception");
    } catch (const smolrun::Error &error) {
        expect(error.status() == SMOLRUN_IO && std::string(error.code()) == "io", "the exception of a file");
    }
    try {
        model.encode_chat({{"user", std::string("a\0b", 3)}});
        expect(false, "an exception for a text that C would cut");
    } catch (const smolrun::Error &error) {
        expect(error.status() == SMOLRUN_ARGUMENT, "the exception of an argument");
    }
    const auto again = other.generate_after(prompt, options);
    std::size_t count = 0;
    for (auto token = again.begin(); !(token == again.end()); token++) ++count;
    expect(count == 30, "iterators that compare and step as others do");

    smolrun::Session moved(std::move(session));
    expect(moved.position() == tokens.size(), "a session that was moved");
}
