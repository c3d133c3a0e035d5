// Several continuations of one text, and what the model knows of it, in C++.
// usage: tales BLOB [TEXT]
#include <iostream>
#include <smolrun.hpp>

int main(int argc, char **argv) {
    if (argc < 2) {
        std::cerr << "usage: tales BLOB [TEXT]\n";
        return 2;
    }
    try {
        const auto model = smolrun::Model::open(argv[1]);
        const auto prompt = model.encode_prompt(argc > 2 ? argv[2] : "Once upon a time");
        auto options = smolrun::generate_options();
        options.temperature = 0.8f, options.max_tokens = 40;

        auto how = smolrun::session_options();
        how.threads = 1; // none is started
        smolrun::Session session(model, how);
        session.feed({prompt.begin(), prompt.end() - 1}); // computed once, for all that follow
        for (options.seed = 1; options.seed <= 3; options.seed++) {
            auto tale = session.fork();
            std::cout << options.seed << ":" << model.detokenize(prompt);
            for (const auto &token : tale.generate({prompt.back()}, options)) std::cout << smolrun::text(token);
            std::cout << "\n";
        }

        smolrun::Scheduler scheduler(model); // the same, computed together
        std::vector<std::string> tales;
        for (options.seed = 1; options.seed <= 3; options.seed++) {
            scheduler.submit(prompt, options);
            tales.push_back(std::to_string(options.seed) + ":" + model.detokenize(prompt));
        }
        while (const auto *event = scheduler.next())
            if (event->token) tales[event->request] += smolrun::text(*event->token);
        for (const auto &tale : tales) std::cout << tale << "\n";
    } catch (const smolrun::Error &error) {
        std::cerr << error.what() << " (" << error.code() << ")\n";
        return 1;
    }
}
