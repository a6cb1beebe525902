// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package account

import (
	"encoding/json"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/audit"
)

const (
	// maxGroups is the maximum size of the groups in a token, in bytes. A user with more groups can still sign in, but
	// some groups are omitted. If such users were refused, anyone who can edit bindings in one workspace could prevent
	// users of other workspaces from signing in, by creating bindings for many of their groups.
	maxGroups = 6 << 10
	// maxID is the maximum size of a provider user's ID, in bytes.
	maxID = 255
	// MaxState is the maximum size of a provider user's state, in bytes.
	MaxState = 4 << 10
)

// Claims identify a user who has signed in. They are part of an authorization code.
type Claims struct {
	// User and UID are the name and UID of a local User, or the name and ID of a provider's user.
	User string    `json:"u"`
	UID  types.UID `json:"d"`
	// Password is the digest of a local User's password hash at the time of the login.
	Password string `json:"p,omitempty"`
	// The other fields are only set for users from a provider. Groups are the groups that bindings refer to.
	Provider    string    `json:"v,omitempty"`
	ProviderUID types.UID `json:"w,omitempty"`
	Groups      []string  `json:"g,omitempty"`
	// State is secret data for the connector. Its format is opaque.
	State []byte `json:"x,omitempty"`
	// Notice is a message for the user.
	Notice string `json:"m,omitempty"`
}

// Principal returns the user's name in bindings.
func (c Claims) Principal() string {
	if c.Provider == "" {
		return v1.PrincipalPrefixLocal + c.User
	}
	return c.Provider + ":" + c.User
}

// Audited returns the user in the form that the audit log records.
func (c Claims) Audited() audit.User {
	return audit.User{Name: c.Principal(), UID: string(c.UID)}
}

// Fitting returns the groups that fit in a token, sorted. The first groups in the list take precedence.
func Fitting(groups []string) []string {
	var fit []string
	size := len("[]")
	for _, group := range groups {
		if more := len(EncodeGroups([]string{group})) - len("[]") + len(","); size+more <= maxGroups {
			size += more
			fit = append(fit, group)
		}
	}
	slices.Sort(fit)
	return fit
}

// EncodeGroups encodes groups for storage in a session.
func EncodeGroups(groups []string) []byte {
	raw, err := json.Marshal(groups)
	if err != nil { // marshaling a list of strings does not fail
		return nil
	}
	return raw
}
