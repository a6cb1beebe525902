// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package identity determines the user and the groups that a request comes from, or refuses the request.
package identity

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/drover-dev/drover/internal/identity/decision"
)

// HubPrefix is the prefix for the names of the hub's users and groups in a member, and for the keys of their extra
// fields. The prefix ensures that a member never mistakes a ServiceAccount, a node or the group system:masters of the
// hub for its own. Bindings use names with this prefix.
const HubPrefix = "hub:"

const (
	// anonymous is the user of a request without credentials.
	anonymous = "system:anonymous"
	// authenticated is the group that an API server adds to all authenticated users.
	authenticated = "system:authenticated"
)

// Identity is the user who sends a request. An Identity may be shared by several requests, so it must not be changed.
type Identity struct {
	// User is the user's name in a member, for example "hub:system:serviceaccount:ci:deployer". It is never empty in a
	// valid Identity.
	User string
	// UID is the user's UID on the hub. It may be empty.
	UID string
	// Groups are the names of the user's groups in a member, for example "hub:system:authenticated".
	Groups []string
	// Extra holds the extra fields from the hub's authentication. Each key has the prefix HubPrefix, because a node or
	// pod in these fields belongs to the hub.
	Extra map[string][]string
	// Hub holds the user's name and groups on the hub. It is used for authorization on the hub.
	Hub authenticationv1.UserInfo
}

// New returns the identity of a user that the hub has authenticated. It refuses anonymous users. It also refuses names
// that would be altered in a header, because the member would then receive different names.
func New(info authenticationv1.UserInfo) (Identity, error) {
	if info.Username == "" || info.Username == anonymous {
		return Identity{}, errors.New("identify user: the user has no name or is anonymous")
	}
	id := Identity{
		User:   HubPrefix + info.Username,
		UID:    info.UID,
		Groups: make([]string, 0, len(info.Groups)),
		Extra:  make(map[string][]string, len(info.Extra)),
		Hub:    info,
	}
	for _, group := range info.Groups {
		if group == "" {
			continue // an empty field in a static token file creates a group with an empty name
		}
		id.Groups = append(id.Groups, HubPrefix+group)
	}
	for key, values := range info.Extra {
		id.Extra[HubPrefix+key] = values
	}
	if bad, ok := id.uncarriable(); ok {
		return Identity{}, fmt.Errorf("identify user %q: %q has control characters, or spaces at its start or end",
			info.Username, bad)
	}
	return id, nil
}

// Principal returns the identity of a user from the hub's own issuer, such as "local:alice". The user and the user's
// groups have the same names on the hub and in members. The user and the groups must come from the same provider.
func Principal(name, uid string, groups ...string) (Identity, error) {
	id := Identity{User: name, UID: uid, Groups: groups, Hub: authenticationv1.UserInfo{
		Username: name, UID: uid, Groups: append([]string{authenticated}, groups...),
	}}
	provider, user, found := strings.Cut(name, ":")
	foreign := slices.IndexFunc(groups, func(g string) bool {
		return !strings.HasPrefix(g, provider+":") || len(g) == len(provider)+1
	})
	if foreign >= 0 {
		return Identity{}, fmt.Errorf("identify user %q: group %q does not belong to the user's provider", name,
			groups[foreign])
	}
	if bad, is := id.uncarriable(); is || !found || provider == "" || user == "" || reserved(provider) {
		return Identity{}, fmt.Errorf("identify user %q: %q is not the name of a principal, <provider>:<name>", name, bad)
	}
	return id, nil
}

// reserved reports whether names with this prefix belong to the hub, to members, or to the installers of clusters. For
// example, kubeadm:cluster-admins has all rights in many members.
func reserved(provider string) bool {
	return provider+":" == HubPrefix || slices.Contains([]string{"system", "kubeadm", "eks"}, provider)
}

// Valid reports whether the Identity identifies a user.
func (id Identity) Valid() bool { return id.User != "" && id.Hub.Username != "" }

// Sharer returns the name under which the user gets a share of the hub's capacity. All ServiceAccounts of a namespace
// have one share, because a user who can create one ServiceAccount can create thousands.
func (id Identity) Sharer() string {
	const accounts = "system:serviceaccount:"
	if rest, ok := strings.CutPrefix(id.Hub.Username, accounts); ok {
		namespace, _, _ := strings.Cut(rest, ":")
		return accounts + namespace
	}
	return id.Hub.Username
}

// uncarriable returns the first value that is not HeaderSafe, and reports whether there is one.
func (id Identity) uncarriable() (string, bool) {
	values := append([]string{id.User, id.UID}, id.Groups...)
	for key, more := range id.Extra {
		values = append(append(values, key), more...)
	}
	i := slices.IndexFunc(values, func(s string) bool { return !HeaderSafe(s) })
	if i < 0 {
		return "", false
	}
	return values[i], true
}

// HeaderSafe reports whether s is transmitted unchanged as the value of an HTTP header.
func HeaderSafe(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == 0x7f {
			return false
		}
	}
	return s == "" || s[0] != ' ' && s[len(s)-1] != ' '
}

// Digest returns a digest of the identity and additional strings. Different identities have different digests.
func (id Identity) Digest(further ...string) decision.Key {
	d := digest{Hash: sha256.New()}
	d.strings(id.User, id.UID, id.Hub.Username, id.Hub.UID)
	d.list(id.Groups)
	d.list(id.Hub.Groups)
	d.number(len(id.Extra))
	if len(id.Extra) > 0 {
		for _, key := range slices.Sorted(maps.Keys(id.Extra)) {
			d.strings(key)
			d.list(id.Extra[key])
		}
	}
	d.list(further)
	var key decision.Key
	d.Sum(key[:0])
	return key
}

// digest hashes lists of strings. The encoding is unambiguous, so different lists have different digests.
type digest struct {
	hash.Hash
	buffer []byte
}

func (d *digest) number(n int) {
	d.buffer = binary.AppendUvarint(d.buffer[:0], uint64(n))
	d.Write(d.buffer)
}

func (d *digest) strings(parts ...string) {
	for _, part := range parts {
		d.buffer = binary.AppendUvarint(d.buffer[:0], uint64(len(part)))
		d.buffer = append(d.buffer, part...)
		d.Write(d.buffer)
	}
}

func (d *digest) list(parts []string) {
	d.number(len(parts))
	d.strings(parts...)
}
