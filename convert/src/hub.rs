//! Fetching a registered model with Hugging Face's own client, into its own cache.

use std::io::{IsTerminal, stderr};
use std::path::Path;

use hf_hub::api::sync::{ApiBuilder, ApiError};
use hf_hub::{Repo, RepoType};

use crate::error::{Error, Result};
use crate::registry::Model;

/// Gets what `cache` lacks of `model`'s files. `HF_ENDPOINT` names another hub; the cache's token is used, if it has one.
pub(crate) fn fetch(model: &Model, cache: &Path) -> Result<()> {
    let problem = |file: &str, error: ApiError| {
        let problem = format!("expected {file} from the Hugging Face hub, found: {error}");
        Error::file(Path::new(&model.hub_id), problem)
    };
    let builder =
        ApiBuilder::from_env().with_cache_dir(cache.to_owned()).with_progress(stderr().is_terminal());
    let api = builder.build().map_err(|error| problem("files", error))?;
    let repo = Repo::with_revision(model.hub_id.clone(), RepoType::Model, model.revision.clone());
    let repo = api.repo(repo);
    for file in model.hub_files() {
        repo.get(&file.path).map_err(|error| problem(&file.path, error))?;
    }
    Ok(())
}
