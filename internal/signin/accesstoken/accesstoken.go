// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package accesstoken authenticates users with the access tokens of their sessions.
package accesstoken

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/token"
)

// maxVerified is the maximum number of verified tokens in the cache.
const maxVerified = 8192

// Digest identifies a token in caches.
type Digest = [sha256.Size]byte

// Verified is a token whose signature has been verified.
type Verified struct {
	token.Claims
	key string // the ID of the key that signed the token
	// groups holds the groups from the claims, in the encoding that sessions use.
	groups []byte
}

// Cluster returns the cluster that the token is limited to, or "" if the token is valid for all clusters.
func (v Verified) Cluster() string { return ClusterOf(v.Claims) }

// ClusterOf returns the cluster that a token with these verified claims is limited to, or "" if the token is valid for
// all clusters.
func ClusterOf(c token.Claims) string {
	// Verify has checked that the token has exactly one audience.
	cluster, one := strings.CutPrefix(c.Audience[0], oauth.AudienceCluster)
	if !one {
		return ""
	}
	return cluster
}

// Lifetime returns the maximum lifetime of tokens that the hub accepts for an audience. For direct-access audiences it
// returns 0, because tokens for direct access live longer and are not valid for the hub.
func Lifetime(audience string) time.Duration {
	if _, one := oauth.ClusterOf(audience); one || audience == oauth.ClientID {
		return token.Lifetime
	}
	return 0
}

// Verifier verifies tokens. It is safe for concurrent use.
type Verifier struct {
	issuer   string
	keyring  *keyring.Keyring
	sessions *session.Store
	accounts *account.Accounts
	member   func(*http.Request) string
	now      func() time.Time
	verified *cache.LRUExpireCache // values of type Verified, by Digest
}

// New returns a Verifier for an issuer's tokens. The member function returns the member that a request is for.
func New(
	issuer string, keys *keyring.Keyring, sessions *session.Store, accounts *account.Accounts,
	member func(*http.Request) string, now func() time.Time,
) *Verifier {
	return &Verifier{issuer, keys, sessions, accounts, member, now, cache.NewLRUExpireCache(maxVerified)}
}

// Claims reports whether a token claims to come from this issuer.
func (v *Verifier) Claims(raw string, sum Digest) bool {
	_, known := v.verified.Get(sum)
	return known || token.IssuedBy(raw, v.issuer)
}

// Identify returns the user of a request that carries a token from this issuer.
func (v *Verifier) Identify(r *http.Request, raw string, sum Digest) (identity.Identity, error) {
	t, err := v.verify(r.Context(), raw, sum)
	if err == nil {
		err = v.Reaches(r, t.Cluster())
	}
	if err != nil {
		return identity.Identity{}, err
	}
	return v.user(r.Context(), t)
}

// BySession returns the claims and the user of a token that is valid for all clusters. It refuses a token for one
// cluster, because such a token is valid only for the paths of the cluster. It cannot be exchanged for another token,
// and cannot end a session.
func (v *Verifier) BySession(ctx context.Context, raw string) (Verified, identity.Identity, error) {
	t, err := v.verify(ctx, raw, sha256.Sum256([]byte(raw)))
	if err != nil {
		return Verified{}, identity.Identity{}, err
	}
	if t.Cluster() != "" {
		return Verified{}, identity.Identity{},
			refusal.Forbidden("the token is valid for one cluster only; sign in for another")
	}
	id, err := v.user(ctx, t)
	return t, id, err
}

// Reaches returns a refusal if a token is valid for only one cluster and the request is for a different cluster.
func (v *Verifier) Reaches(r *http.Request, cluster string) error {
	if cluster == "" || v.member(r) == cluster {
		return nil
	}
	return refusal.Forbidden(fmt.Sprintf("the token is valid for cluster %q only", cluster))
}

// verify checks that a token was signed with one of this issuer's keys. The token may be valid for all clusters or for
// one.
func (v *Verifier) verify(ctx context.Context, raw string, sum Digest) (Verified, error) {
	current, err := v.keyring.Current(ctx)
	if apierrors.IsNotFound(err) {
		return Verified{},
			refusal.Unauthorized("the hub has no keys for checking tokens; sign in again").Because(err)
	} else if err != nil {
		return Verified{}, refusal.Unavailable("the hub cannot check the token at the moment; try again").Because(err)
	}
	if known, ok := v.verified.Get(sum); ok {
		known := known.(Verified) // only values of type Verified are added
		if _, published := current.Set.Public(known.key); published {
			return known, nil
		}
		v.verified.Remove(sum)
	}
	claims, key, err := token.Verify(raw, current.Set, v.issuer, Lifetime)
	if err != nil {
		return Verified{}, refusal.Unauthorized("the hub does not accept the token; sign in again").Because(err)
	}
	fresh := Verified{claims, key, account.EncodeGroups(claims.Groups)}
	if left := claims.Expiry.Time().Sub(v.now()); left > 0 {
		v.verified.Add(sum, fresh, left)
	}
	return fresh, nil
}

// user returns the user of a token. It refuses a token that is not currently valid, a disabled user, and a session that
// has ended.
func (v *Verifier) user(ctx context.Context, t Verified) (identity.Identity, error) {
	if err := t.Current(v.now()); err != nil {
		groups, ended := v.inSession(ctx, t)
		switch { // ErrEnded also stops requests that started before the token expired
		case errors.Is(ended, identity.ErrEnded):
			return identity.Identity{}, ended
		case ended == nil && len(groups) < len(t.Groups):
			return identity.Identity{}, refusal.Unauthorized(
				"the user is in fewer groups than when the token was given").Because(identity.ErrEnded)
		}
		return identity.Identity{}, refusal.Unauthorized("the token has expired; sign in again").Because(err)
	}
	id, err := identity.Principal(t.Subject, t.UID, t.Groups...)
	if err != nil {
		return identity.Identity{},
			refusal.Unauthorized("the token's user has a name that the hub can't pass on").Because(err)
	}
	if err := v.accounts.Admit(ctx, id); err != nil {
		return identity.Identity{}, err
	}
	groups, err := v.inSession(ctx, t)
	if err != nil || len(groups) == len(t.Groups) {
		return id, err
	}
	return identity.Principal(t.Subject, t.UID, groups...)
}

// inSession returns the token's groups that are also in its session. A refresh may have removed groups from the
// session. inSession refuses a token whose session was revoked or removed.
func (v *Verifier) inSession(ctx context.Context, t Verified) ([]string, error) {
	s, err := v.sessions.Cached(ctx, t.Session)
	if apierrors.IsNotFound(err) && v.now().Sub(t.IssuedAt.Time()) < session.Settle {
		s, err = v.sessions.Live(ctx, t.Session) // the cache of this replica may be out of date
	}
	ended := refusal.Unauthorized("the session has ended; sign in again")
	switch {
	case err == nil && s.Revoked():
		return nil, ended.Because(identity.ErrEnded)
	case apierrors.IsNotFound(err) && !strings.HasPrefix(t.Subject, v1.PrincipalPrefixLocal):
		// The hub no longer queries the provider for this user. Without ErrEnded, requests that are already open would
		// never end.
		return nil, ended.Because(identity.ErrEnded)
	case apierrors.IsNotFound(err), err == nil && (s.UID() != t.UID || s.Principal() != t.Subject):
		return nil, ended
	case err != nil:
		return nil, refusal.Unavailable("the hub cannot check the session at the moment; try again").Because(err)
	case s.Provider() != "":
		return v.ofProvider(ctx, s, t)
	}
	return t.Groups, nil
}

// ofProvider returns the token's groups that are also in its session. It refuses a session whose provider was deleted
// or recreated.
func (v *Verifier) ofProvider(ctx context.Context, s session.Session, t Verified) ([]string, error) {
	p, err := v.accounts.Provider(ctx, v.accounts.Cache, s.Provider())
	switch {
	case errors.Is(err, account.ErrNotStanding), err == nil && string(p.UID) != s.ProviderUID():
		return nil, refusal.Unauthorized("the session has ended; sign in again").Because(identity.ErrEnded)
	case err != nil:
		return nil, refusal.Unavailable(
			"the hub cannot look up the user's provider at the moment; try again").Because(err)
	case len(t.Groups) == 0, bytes.Equal(t.groups, s.Data[session.KeyGroups]):
		return t.Groups, nil
	}
	kept, err := s.Groups()
	if err != nil {
		return nil, refusal.Unauthorized("the session is damaged; sign in again").Because(err)
	}
	return slices.DeleteFunc(slices.Clone(t.Groups), func(group string) bool {
		return !slices.Contains(kept, group)
	}), nil
}
