// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package account decides which local Users and which users of AuthProviders may sign in.
package account

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/password"
	"github.com/drover-dev/drover/internal/signin/quietlog"
)

// Local is used in place of a provider's name for local Users.
const Local = "local"

// ErrNotStanding is returned if a user or the user's provider was disabled, deleted or recreated.
var ErrNotStanding = errors.New("the user is disabled or no longer exists")

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=users;authproviders,verbs=get;list;watch

// Accounts looks up Users and AuthProviders. All methods are safe for concurrent use.
type Accounts struct {
	// Cache reads Users, AuthProviders, and the password Secrets in Namespace. Live reads them from the API server.
	Cache, Live client.Reader
	Namespace   string
	// Disabled reports whether there is a User that disables the given principal in spec.principal.
	Disabled func(ctx context.Context, principal string) (bool, error)
	// Named returns the given groups that bindings refer to.
	Named func(groups []string) ([]string, error)
	Log   *quietlog.Log
}

// Standing returns ErrNotStanding if a user who has signed in is no longer allowed to sign in.
func (a *Accounts) Standing(ctx context.Context, from client.Reader, c Claims) error {
	if c.Provider == "" {
		_, err := a.User(ctx, from, c.User, string(c.UID))
		return err
	}
	p, err := a.Provider(ctx, from, c.Provider)
	if err != nil {
		return err
	}
	if p.UID != c.ProviderUID {
		return ErrNotStanding
	}
	return a.Enabled(ctx, c.Principal())
}

// User returns a local User. It returns ErrNotStanding if the User is disabled or does not exist with the given UID.
func (a *Accounts) User(ctx context.Context, from client.Reader, name, uid string) (*v1.User, error) {
	user := &v1.User{}
	if err := from.Get(ctx, types.NamespacedName{Name: name}, user); apierrors.IsNotFound(err) {
		return nil, ErrNotStanding
	} else if err != nil {
		return nil, err
	}
	if user.Spec.Disabled || user.Spec.Principal != "" || string(user.UID) != uid || !user.DeletionTimestamp.IsZero() {
		return nil, ErrNotStanding
	}
	return user, nil
}

// Provider returns an AuthProvider. If the AuthProvider is disabled or does not exist, it returns ErrNotStanding.
func (a *Accounts) Provider(ctx context.Context, from client.Reader, name string) (*v1.AuthProvider, error) {
	p := &v1.AuthProvider{}
	if Reserved(name) {
		return nil, ErrNotStanding
	}
	if err := from.Get(ctx, types.NamespacedName{Name: name}, p); apierrors.IsNotFound(err) {
		return nil, ErrNotStanding
	} else if err != nil {
		return nil, fmt.Errorf("read AuthProvider %s: %w", name, err)
	}
	if p.Spec.Disabled || !p.DeletionTimestamp.IsZero() {
		return nil, ErrNotStanding
	}
	return p, nil
}

// Enabled returns ErrNotStanding if a User disables the principal.
func (a *Accounts) Enabled(ctx context.Context, principal string) error {
	off, err := a.Disabled(ctx, principal)
	if err == nil && off {
		return ErrNotStanding
	}
	return err
}

// Welcome returns the Claims for a user from a provider. It returns err if the provider failed, and
// connector.ErrRefused if the hub refuses the user.
func (a *Accounts) Welcome(ctx context.Context, p *v1.AuthProvider, u connector.User, err error) (Claims, error) {
	if err != nil {
		return Claims{}, err
	}
	claims, err := a.Claim(p, u)
	if err != nil {
		return Claims{}, err
	}
	err = a.Enabled(ctx, claims.Principal())
	audit.From(ctx).Identified(claims.Audited(), nil) // also recorded for a user whom the hub refuses
	if errors.Is(err, ErrNotStanding) {
		err = fmt.Errorf("%w: the hub refuses the user", connector.ErrRefused)
	}
	return claims, err
}

// Claim returns the Claims for a user from a provider. It returns connector.ErrRefused if a principal cannot contain
// the user's name.
func (a *Accounts) Claim(p *v1.AuthProvider, u connector.User) (Claims, error) {
	if _, err := Principal(p.Name, u.Name); err != nil {
		return Claims{}, fmt.Errorf("%w: %w", connector.ErrRefused, err)
	}
	if u.ID == "" || len(u.ID) > maxID || len(u.State) > MaxState {
		return Claims{}, errors.New("the provider's ID or state of the user is empty or too long")
	}
	groups, err := a.Named(Groups(p.Name, u.Groups))
	if err != nil {
		return Claims{}, err
	}
	claims := Claims{
		User: u.Name, UID: types.UID(u.ID), Provider: p.Name, ProviderUID: p.UID,
		Groups: Fitting(groups), State: u.State, Notice: u.Notice,
	}
	if u.Notice != "" {
		a.Log.Info("a provider left out groups of a user", "user", claims.Principal(), "notice", u.Notice)
	}
	if left := len(groups) - len(claims.Groups); left > 0 {
		a.Log.Info("bindings name more groups of a user than fit into a token",
			"user", claims.Principal(), "groups", len(groups), "leftOut", left)
	}
	return claims, nil
}

// Admit returns a refusal if, according to the cache, a principal is not allowed to act.
func (a *Accounts) Admit(ctx context.Context, id identity.Identity) error {
	provider, name, _ := strings.Cut(id.User, ":")
	var err error
	if provider == Local {
		_, err = a.User(ctx, a.Cache, name, id.UID)
	} else if _, err = a.Provider(ctx, a.Cache, provider); err == nil {
		err = a.Enabled(ctx, id.User)
	}
	switch {
	case errors.Is(err, ErrNotStanding):
		return refusal.Unauthorized("the user " + id.User +
			" or their provider is disabled or no longer exists; ask an administrator of the hub")
	case err != nil:
		return refusal.Unavailable("the hub cannot look up the user at the moment; try again").Because(err)
	}
	return nil
}

// Limits on names, in bytes.
const (
	maxName  = 128
	maxGroup = 256
)

// nameForm matches the names that users may have. Capital letters and letters of other scripts are not allowed, because
// some of them look like other letters. Colons and slashes are not allowed, because they separate the provider's name
// and the parts of a path.
var nameForm = regexp.MustCompile(`^[a-z0-9_]([-a-z0-9._@+']*[a-z0-9_])?$`)

// Principal returns the principal for a user from a provider. It rejects a name that could be mistaken for another
// principal. It never changes a name, because two users of a provider could then have the same principal.
func Principal(provider, name string) (string, error) {
	if Reserved(provider) {
		return "", fmt.Errorf("a provider must not be named %q", provider)
	}
	if len(name) > maxName || !nameForm.MatchString(name) {
		return "", fmt.Errorf("the provider's name %.*q cannot be a user name: it must have at most %d lower-case "+
			"letters, digits and . _ @ + - '; for capitals see lowercaseNames of the provider", maxName, name, maxName)
	}
	return provider + ":" + name, nil
}

// Groups returns the names of a provider's groups as they appear in bindings. It omits groups that a binding cannot
// contain.
func Groups(provider string, groups []string) []string {
	var named []string
	for _, g := range groups {
		if g == "" || len(g) > maxGroup || !utf8.ValidString(g) || strings.TrimSpace(g) != g ||
			strings.Contains(g, ":") || strings.ContainsFunc(g, unseen) {
			continue
		}
		named = append(named, provider+":"+g)
	}
	return named
}

// unseen reports whether a character is invisible in a binding or would be changed in a header.
func unseen(r rune) bool { return !unicode.IsPrint(r) || r > unicode.MaxASCII }

// reserved contains prefixes of user and group names that the hub, API servers or cluster installers use. For example,
// members created by kubeadm bind the group kubeadm:cluster-admins to cluster-admin, and members on EKS grant many
// rights to users such as eks:addon-manager.
var reserved = []string{Local, "hub", "system", "kubeadm", "eks"}

// Reserved reports whether a provider must not have the given name.
func Reserved(provider string) bool {
	return provider == "" || strings.Contains(provider, ":") || slices.Contains(reserved, provider)
}

// Password returns a User and the hash of the User's password. If the User or the password does not exist, it returns a
// hash that no password matches. As a result, checking a password always takes the same amount of time.
func (a *Accounts) Password(ctx context.Context, name string) (*v1.User, string, error) {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return nil, password.Nothing(), nil
	}
	user, secret := &v1.User{}, &corev1.Secret{}
	for key, object := range map[types.NamespacedName]client.Object{{Name: name}: user, a.secret(name): secret} {
		if err := a.Cache.Get(ctx, key, object); apierrors.IsNotFound(err) {
			return nil, password.Nothing(), nil
		} else if err != nil {
			return nil, "", fmt.Errorf("read a user: %w", err)
		}
	}
	if user.Spec.Principal != "" || !HoldsPassword(secret, user) {
		return nil, password.Nothing(), nil
	}
	return user, string(secret.Data[v1.UserSecretKey]), nil
}

// SamePassword returns ErrNotStanding if the digest of the User's password hash has changed. As a result, setting a new
// password ends all sessions that started with the previous password.
func (a *Accounts) SamePassword(ctx context.Context, from client.Reader, name, digest string) error {
	secret := &corev1.Secret{}
	if err := from.Get(ctx, a.secret(name), secret); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read a user: %w", err)
	}
	if hash := string(secret.Data[v1.UserSecretKey]); hash == "" || digest != oauth.Digest(hash) {
		return ErrNotStanding
	}
	return nil
}

// secret returns the name of the Secret with a User's password.
func (a *Accounts) secret(user string) types.NamespacedName {
	return types.NamespacedName{Namespace: a.Namespace, Name: v1.UserSecretPrefix + user}
}

// HoldsPassword reports whether a Secret holds the password of this User, rather than of an earlier User with the same
// name.
func HoldsPassword(secret *corev1.Secret, user *v1.User) bool {
	return secret.Labels[v1.LabelSecretKind] == v1.SecretKindUser && user.UID != "" &&
		string(secret.Data[v1.UserSecretUID]) == string(user.UID)
}
