// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package direct provides the data that members need to verify users' tokens without the hub.
package direct

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/session"
)

// Options are the issuer's settings for direct access. With the zero value, no tokens for direct access are issued.
type Options struct {
	// Path is the part between the issuer URL and <namespace>/<name> in the audience of a token for direct access. The
	// audience is the cluster's URL on the hub.
	Path string
	// Lifetime returns the lifetime of a user's token for direct access to a cluster. It returns 0 if the user is not
	// allowed to reach the cluster or the cluster has no direct access.
	Lifetime func(context.Context, identity.Identity, types.NamespacedName) (time.Duration, error)
}

// Access tells members which tokens to accept. It is safe for concurrent use.
type Access struct {
	Options

	URL      string // the issuer's URL
	Keyring  *keyring.Keyring
	Sessions *session.Store
	Accounts *account.Accounts
	Now      func() time.Time
}

// Cluster returns the cluster (<namespace>/<name>) in an audience, and reports whether the audience is valid for direct
// access.
func (a *Access) Cluster(audience string) (string, bool) {
	name, found := strings.CutPrefix(audience, a.URL+a.Path)
	return name, found && a.Lifetime != nil && oauth.IsCluster(name)
}

// Audience returns the audience of tokens for direct access to a cluster.
func (a *Access) Audience(cluster types.NamespacedName) string {
	return a.URL + a.Path + cluster.String()
}

// Issuer returns the issuer claim of tokens.
func (a *Access) Issuer() string { return a.URL }

// PublishedKeys returns a JSON Web Key Set that contains the keys for verifying tokens.
func (a *Access) PublishedKeys(ctx context.Context) ([]byte, error) {
	current, err := a.Keyring.Current(ctx)
	if err != nil {
		return nil, err
	}
	return json.Marshal(current.Set.JWKS())
}

// Denied returns the sorted IDs of sessions. Members must refuse the direct-access tokens of these sessions even before
// the tokens expire. Denied also returns the time when the first session can be removed from the list, or the zero time
// if the list is empty.
func (a *Access) Denied(ctx context.Context) (denied []string, again time.Time, err error) {
	all, err := a.Sessions.All(ctx)
	if err != nil {
		return nil, again, err
	}
	now := a.Now()
	for _, s := range all {
		until := s.Direct()
		if !strings.HasPrefix(s.Name, session.Prefix) || !now.Before(until) {
			continue
		}
		stands, err := a.stands(ctx, s)
		if err != nil {
			return nil, again, err
		}
		if stands {
			continue
		}
		denied = append(denied, s.ID())
		if again.IsZero() || until.Before(again) {
			again = until
		}
	}
	slices.Sort(denied)
	return denied, again, nil
}

// stands reports whether a session is valid: it has not been revoked, and its user may still sign in. It reads only
// from the cache.
func (a *Access) stands(ctx context.Context, s session.Session) (bool, error) {
	if s.Revoked() {
		return false, nil
	}
	err := a.Accounts.Standing(ctx, a.Accounts.Cache, s.Claims())
	if err == nil && s.Provider() == "" {
		err = a.Accounts.SamePassword(ctx, a.Accounts.Cache, s.User(), string(s.Data[session.KeyPassword]))
	}
	if errors.Is(err, account.ErrNotStanding) {
		return false, nil
	}
	return err == nil, err
}

// KeepDeleted recreates the Secret of a session that was deleted while members may still accept the session's tokens.
func (a *Access) KeepDeleted(ctx context.Context, deleted client.Object) error {
	secret, ok := deleted.(*corev1.Secret)
	if !ok || !a.Decides(deleted) || !a.Now().Before(session.TimeOf(secret, session.KeyDirect)) {
		return nil
	}
	return a.Sessions.Restore(ctx, session.Session{Secret: secret})
}

// Changes reports whether an event may change the sessions and keys that are sent to members. The event's object must
// satisfy Decides. The before parameter is nil for a created object, and after is nil for a deleted one. Changes
// returns false if an event only records a new token in a session that has not been revoked. Such events are frequent,
// because they occur for each new token for direct access.
func (a *Access) Changes(ctx context.Context, before, after client.Object) bool {
	is := func(o client.Object) *session.Session {
		if secret, ok := o.(*corev1.Secret); ok && secret.Labels[v1.LabelSecretKind] == v1.SecretKindSession {
			return &session.Session{Secret: secret}
		}
		return nil
	}
	told := func(s *session.Session) bool { // reports whether the hub informs members of the session
		if !a.Now().Before(s.Direct()) {
			return false
		}
		stands, err := a.stands(ctx, *s)
		return err != nil || !stands
	}
	was, now := is(before), is(after)
	switch {
	case was == nil && now == nil: // the object is a user, a provider, a password or the keys
		return true
	case now == nil:
		return a.Now().Before(was.Direct())
	}
	return told(now) || was != nil && told(was)
}

// Decides reports whether a Secret affects direct access. Such a Secret contains the keys, a user's password, or a
// session with tokens for direct access.
func (a *Access) Decides(o client.Object) bool {
	if o.GetNamespace() != a.Accounts.Namespace {
		return false
	}
	switch o.GetLabels()[v1.LabelSecretKind] {
	case v1.SecretKindSignIn, v1.SecretKindUser:
		return true
	}
	return a.Sessions.IsDirect(o)
}
