// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package session stores users' sessions, each in a Secret.
package session

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/refresh"
	"github.com/drover-dev/drover/internal/signin/token"
)

// Prefix is the name prefix of session Secrets. The rest of the name is the session's ID.
const Prefix = "drover-session-"

// LabelUser is the label with the name of the session's User, or with a digest of the principal of a provider's user.
const LabelUser = v1.Group + "/user"

// Keys in the data of a session's Secret. The Secrets of script tokens also contain some of these keys.
const (
	KeyUID     = "uid"
	KeyBegun   = "begun"
	KeyEnds    = "ends"
	KeyRevoked = "revoked"
	// KeyKeys holds the UID of the Secret with the issuer's keys. Deleting that Secret ends all sessions. KeyPassword
	// holds the digest of the user's password hash at the time of the login. KeyRefresh holds the state of the
	// session's refresh tokens if there are any.
	KeyKeys     = "keys"
	KeyPassword = "password"
	KeyRefresh  = "refresh"
	// KeyAwaited marks a session that a user has approved, but whose device has not fetched its tokens yet.
	KeyAwaited = "awaited"
	// KeyDirect holds the time until which members may accept tokens of the session without the hub. The Secret is kept
	// until that time, so that members can be notified if the session ends.
	KeyDirect = "direct"
	// KeyClient holds the client that the user signed in with. It is missing for kubectl.
	KeyClient = "client"
	// KeyAsking holds the time when a replica started to query the session's provider.
	KeyAsking = "asking"
)

// Clients that users sign in with. kubectl opens a browser on the same computer. A device shows a code, which the user
// enters elsewhere.
const (
	ClientKubectl = "kubectl"
	ClientPage    = "page"
	ClientDevice  = "device"
)

// Additional keys in the sessions of users from an AuthProvider.
const (
	KeyPrincipal   = "principal"
	KeyProvider    = "provider"
	KeyProviderUID = "providerUID"
	// KeyGroups holds the groups that bindings refer to, and KeyState holds the state of the connector.
	KeyGroups = "groups"
	KeyState  = "state"
	// KeyNotice holds a notice for the user about the login.
	KeyNotice = "notice"
)

// Session is a stored session.
type Session struct{ *corev1.Secret }

// NewSecret returns a Secret for a user's data, such as a session. The user's User or AuthProvider owns the Secret.
func NewSecret(name types.NamespacedName, c account.Claims, begun, ends time.Time) *corev1.Secret {
	kind, owner, uid := "User", c.User, c.UID
	data := map[string][]byte{KeyUID: []byte(c.UID), KeyBegun: stamp(begun), KeyEnds: stamp(ends)}
	if c.Provider != "" {
		kind, owner, uid = "AuthProvider", c.Provider, c.ProviderUID
		data[KeyPrincipal], data[KeyProvider] = []byte(c.Principal()), []byte(c.Provider)
		data[KeyProviderUID] = []byte(c.ProviderUID)
		data[KeyGroups], data[KeyState], data[KeyNotice] = account.EncodeGroups(c.Groups), c.State, []byte(c.Notice)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: name.Name,
			Labels: map[string]string{
				v1.LabelSecretKind: v1.SecretKindSession, v1.LabelManagedBy: v1.ManagedBy, LabelUser: labelOf(c.Principal()),
			},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: v1.GroupVersion.String(), Kind: kind, Name: owner, UID: uid},
			},
		},
		Type: corev1.SecretTypeOpaque,
		Data: data,
	}
}

// labelOf returns the value of LabelUser for a principal.
func labelOf(principal string) string {
	if name, local := strings.CutPrefix(principal, v1.PrincipalPrefixLocal); local {
		return name
	}
	sum := sha256.Sum256([]byte(principal)) // a label value cannot contain the name
	return "sha256-" + hex.EncodeToString(sum[:16])
}

func stamp(at time.Time) []byte { return []byte(at.UTC().Format(time.RFC3339)) }

// TimeOf returns a time from a Secret, or the zero time if the Secret does not contain it.
func TimeOf(secret *corev1.Secret, key string) time.Time {
	at, err := time.Parse(time.RFC3339, string(secret.Data[key]))
	if err != nil {
		return time.Time{}
	}
	return at
}

// ID returns the session's ID.
func (s Session) ID() string { return strings.TrimPrefix(s.Name, Prefix) }

// Client returns the client that the user signed in with.
func (s Session) Client() string { return cmp.Or(string(s.Data[KeyClient]), ClientKubectl) }

// Open reports whether a session belongs to the given user and has not ended. Users can have the same label, or the same
// name as an earlier user.
func (s Session) Open(principal, uid string, now time.Time) bool {
	return s.Labels[v1.LabelSecretKind] == v1.SecretKindSession && s.Principal() == principal && s.UID() == uid &&
		!s.Revoked() && now.Before(s.Ends())
}

// UID returns the UID of the User, or the ID of the provider's user.
func (s Session) UID() string { return string(s.Data[KeyUID]) }

// User returns the name of the local User.
func (s Session) User() string { return s.Labels[LabelUser] }

// Principal returns the user's name in bindings.
func (s Session) Principal() string {
	if name := s.Data[KeyPrincipal]; len(name) > 0 {
		return string(name)
	}
	return v1.PrincipalPrefixLocal + s.User()
}

// Provider returns the name of the user's AuthProvider, or "" for local Users.
func (s Session) Provider() string { return string(s.Data[KeyProvider]) }

// ProviderUID returns the UID of the user's AuthProvider.
func (s Session) ProviderUID() string { return string(s.Data[KeyProviderUID]) }

// Claims returns the user's claims from the login. The claims contain no groups.
func (s Session) Claims() account.Claims {
	if s.Provider() == "" {
		return account.Claims{User: s.User(), UID: types.UID(s.UID())}
	}
	return account.Claims{
		User: strings.TrimPrefix(s.Principal(), s.Provider()+":"), UID: types.UID(s.UID()),
		Provider: s.Provider(), ProviderUID: types.UID(s.ProviderUID()),
	}
}

// Upstream returns the description of the user that the connector most recently returned.
func (s Session) Upstream() connector.User {
	return connector.User{ID: s.UID(), Name: s.Claims().User, State: s.Data[KeyState]}
}

// Update stores the current description of the user that the provider returned.
func (s Session) Update(c account.Claims) {
	s.Data[KeyGroups], s.Data[KeyState] = account.EncodeGroups(c.Groups), c.State
	s.Data[KeyNotice] = []byte(c.Notice)
}

// Groups returns the groups for the session's tokens.
func (s Session) Groups() ([]string, error) {
	var groups []string
	if raw := s.Data[KeyGroups]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &groups); err != nil {
			return nil, fmt.Errorf("read the groups of session %s: they are malformed", s.Name)
		}
	}
	return groups, nil
}

// Revoked reports whether the session was revoked.
func (s Session) Revoked() bool { return len(s.Data[KeyRevoked]) > 0 }

// Awaited reports whether the session's device has not fetched its tokens yet.
func (s Session) Awaited() bool { return len(s.Data[KeyAwaited]) > 0 }

// Began returns the time when the user signed in.
func (s Session) Began() time.Time { return TimeOf(s.Secret, KeyBegun) }

// Direct returns the time until which members may accept tokens of the session without the hub.
func (s Session) Direct() time.Time { return TimeOf(s.Secret, KeyDirect) }

// Ends returns the time when the session's last token expires. A session with refresh tokens ends at that time.
func (s Session) Ends() time.Time { return Ends(s.Secret) }

// Ends returns the time when a session or a script token ends, or the zero time if the Secret does not contain a time.
func Ends(secret *corev1.Secret) time.Time {
	ends, direct := TimeOf(secret, KeyEnds), TimeOf(secret, KeyDirect)
	if ends.Before(direct) {
		return direct
	}
	return ends
}

// Refresh returns the state of the session's refresh tokens, and reports whether the session has refresh tokens.
func (s Session) Refresh() (state refresh.State, ok bool) {
	raw := s.Data[KeyRefresh]
	return state, len(raw) > 0 && json.Unmarshal(raw, &state) == nil
}

// setRefresh stores the state of the refresh tokens. The session then ends at the given time, or when its last token
// expires if that is later.
func (s Session) setRefresh(state refresh.State, until, now time.Time) error {
	raw, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("store a refresh token: %w", err)
	}
	if last := now.Add(token.Lifetime); last.After(until) {
		until = last
	}
	s.Data[KeyRefresh], s.Data[KeyEnds] = raw, stamp(until)
	return nil
}

// Take assigns an approved session to the device. The device can then get tokens.
func (s Session) Take(now time.Time) {
	delete(s.Data, KeyAwaited)
	s.Data[KeyEnds] = stamp(now.Add(token.Lifetime))
}
