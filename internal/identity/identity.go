// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package identity turns a request into a user with groups, or a typed refusal.
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

// HubPrefix precedes the names of the hub's users and groups in a member, and the keys of what is known of them besides, so that a ServiceAccount,
// system:masters or a node of the hub never is one of the member. Bindings name them with it.
const HubPrefix = "hub:"

// anonymous is the user of a request without credentials.
const anonymous = "system:anonymous"

// Identity is who sends a request. It may be shared between requests: never change what it holds.
type Identity struct {
	// User is the name in a member, for example "hub:system:serviceaccount:ci:deployer". Never empty in a valid Identity.
	User string
	// UID is the user's on the hub. It may be empty.
	UID string
	// Groups are the names in a member, for example "hub:system:authenticated".
	Groups []string
	// Extra is what the hub's authentication says besides, with HubPrefix before each key: a node or pod that it names is the hub's.
	Extra map[string][]string
	// Hub is the user as the hub names it, for authorization there.
	Hub authenticationv1.UserInfo
}

// New makes the identity of a user that the hub has authenticated. It refuses an anonymous user, and names
// that can't be carried in a header unchanged: they would arrive as another name.
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
			continue // a static token file with an empty field makes one; it can be granted nothing
		}
		id.Groups = append(id.Groups, HubPrefix+group)
	}
	for key, values := range info.Extra {
		id.Extra[HubPrefix+key] = values
	}
	if bad, ok := id.uncarriable(); ok {
		return Identity{}, fmt.Errorf("identify user %q: %q has control characters, or spaces at an end", info.Username, bad)
	}
	return id, nil
}

// Valid reports whether it identifies a user.
func (id Identity) Valid() bool { return id.User != "" && id.Hub.Username != "" }

// Sharer is who shares the hub with others. The service accounts of a namespace have one share: who may make one may make thousands.
func (id Identity) Sharer() string {
	const accounts = "system:serviceaccount:"
	if rest, ok := strings.CutPrefix(id.Hub.Username, accounts); ok {
		namespace, _, _ := strings.Cut(rest, ":")
		return accounts + namespace
	}
	return id.Hub.Username
}

// uncarriable finds what would not arrive as it is sent.
func (id Identity) uncarriable() (string, bool) {
	values := append([]string{id.User, id.UID}, id.Groups...)
	for key, more := range id.Extra {
		values = append(append(values, key), more...)
	}
	i := slices.IndexFunc(values, func(s string) bool { return !Carriable(s) })
	if i < 0 {
		return "", false
	}
	return values[i], true
}

// Carriable reports whether s arrives unchanged as the value of an HTTP header.
func Carriable(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == 0x7f {
			return false
		}
	}
	return s == "" || s[0] != ' ' && s[len(s)-1] != ' '
}

// Digest is equal for equal identities only. Further parts go in too.
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

// digest hashes lists of strings so that no two different ones are hashed from the same bytes.
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
