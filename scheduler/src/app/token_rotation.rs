//! Replaces the operator's token while schedulers run, for `landfall operator rotate`.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::app::client_file::ClientFile;
use crate::app::data_dir::write_atomically;
use crate::app::operator_token::TOKEN_FILE;
use crate::machine::secret::{Secret, SecretHash};

/// A new token that will replace the present one. The new token is first written to a separate
/// file, so that it is not lost if the command fails after the database has stored the token's
/// hash.
#[derive(Debug)]
pub struct Successor {
    token: Secret,
    /// The file that contains only the token.
    file: PathBuf,
    /// The file that contains the new token until the database stores the token's hash.
    beside: PathBuf,
    /// A folder with a `client.toml` into which the token must be written too.
    folder: Option<PathBuf>,
}

impl Successor {
    /// Makes a random token and writes it to a file beside the file of the present token. The
    /// present token is in `token_file` if given, else in `folder`.
    pub fn draw(folder: &Path, token_file: Option<&Path>) -> anyhow::Result<Self> {
        let token = Secret::generate().context("make the operator's token")?;
        let file = token_file.map_or_else(|| folder.join(TOKEN_FILE), Path::to_owned);
        let mut beside = file.clone().into_os_string();
        beside.push(".next");
        let beside = PathBuf::from(beside);
        write_atomically(&beside, 0o600, format!("{}\n", token.reveal()).as_bytes())?;
        Ok(Self { token, file, beside, folder: token_file.is_none().then(|| folder.to_owned()) })
    }

    pub fn hash(&self) -> SecretHash {
        self.token.hash()
    }

    /// The path of the file that contains the new token until the database stores the token's hash.
    pub fn beside(&self) -> &Path {
        &self.beside
    }

    /// Deletes the file of the new token.
    pub fn forget(self) -> anyhow::Result<()> {
        std::fs::remove_file(&self.beside).with_context(|| format!("remove {}", self.beside.display()))
    }

    /// Replaces the former token with the new one in all files that contain it, and returns these
    /// files. After an error, the new token is still in the file that `beside` returns.
    pub fn adopt(self) -> anyhow::Result<Vec<PathBuf>> {
        let client = self.folder.as_deref().map(ClientFile::read).transpose()?.flatten();
        let mut files = Vec::new();
        // A copied `client.toml` has no token file beside it. If there is a token file, it is
        // replaced first, because the scheduler reads this file.
        let alone = client.is_some() && !self.file.exists();
        if !alone {
            std::fs::rename(&self.beside, &self.file).with_context(|| format!("replace {}", self.file.display()))?;
            files.push(self.file.clone());
        }
        if let (Some(folder), Some(client)) = (&self.folder, client) {
            files.push(ClientFile { token: self.token.reveal().to_owned(), ..client }.write(folder)?);
        }
        if alone {
            self.forget()?;
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use std::time::Duration;

    use sqlx::PgPool;

    use super::*;
    use crate::app::client_file::{CLIENT_FILE, Defaults};
    use crate::app::data_dir::DataDir;
    use crate::app::operator_token::{Precedence, token};
    use crate::store::settings;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_token_that_was_replaced_is_not_put_in_force_again_by_a_start(pool: PgPool) {
        use Precedence::{DataDir as Own, Database as Shared};
        let base = tempfile::tempdir().unwrap();
        let dir = DataDir::lock(&base.path().join("d")).unwrap();
        let old = token(&pool, &dir, Own).await.unwrap();
        let scheduler = vec!["http://127.0.0.1:1".to_owned()];
        let client = ClientFile { scheduler, ca: None, token: old.clone(), defaults: Defaults::default() };
        client.write(dir.path()).unwrap();
        let elsewhere = base.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        client.write(&elsewhere).unwrap();

        let successor = Successor::draw(&elsewhere, None).unwrap();
        assert_eq!(std::fs::metadata(successor.beside()).unwrap().permissions().mode() & 0o777, 0o600);
        let mut conn = pool.acquire().await.unwrap();
        let (known, new) = (SecretHash::of(&old), successor.hash());
        let replaced = settings::replace_operator_token(&mut conn, &known, &new, Duration::ZERO).await.unwrap();
        assert!(replaced.is_some());
        let again = settings::replace_operator_token(&mut conn, &known, &new, Duration::ZERO).await.unwrap();
        assert_eq!(again, None, "the former one replaces nothing");
        assert_eq!(successor.adopt().unwrap(), [elsewhere.join(CLIENT_FILE)]);
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 1, "nothing is left beside");
        let adopted = ClientFile::read(&elsewhere).unwrap().unwrap();
        assert_eq!((SecretHash::of(&adopted.token), adopted.scheduler), (new, client.scheduler));

        for precedence in [Own, Shared] {
            assert_eq!(token(&pool, &dir, precedence).await.unwrap(), old, "it starts nevertheless");
            assert_eq!(settings::operator_tokens(&mut conn).await.unwrap().in_force, Some(new));
        }
        token(&pool, &dir, Precedence::Operator).await.unwrap();
        assert_eq!(settings::operator_tokens(&mut conn).await.unwrap().in_force, Some(known), "the operator says so");
    }
}
