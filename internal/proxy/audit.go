// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
)

func (t target) member() string {
	if t.local {
		return "local"
	}
	return t.cluster.String()
}

// audited records the sender of a request and the user whom the sender wants to impersonate, whether or not this is
// permitted.
func audited(r *http.Request, id identity.Identity) {
	record := audit.From(r.Context())
	if record == nil {
		return
	}
	user := audit.User{
		Name: id.Hub.Username, UID: id.UID, Groups: id.Hub.Groups,
		Extra: make(map[string][]string, len(id.Hub.Extra)),
	}
	for key, values := range id.Hub.Extra {
		user.Extra[key] = values
	}
	// Malformed headers are refused elsewhere. Forbidden impersonations are recorded as well.
	if wanted, _ := parseImpersonation(r.Header); wanted != nil {
		record.Identified(user, &audit.User{Name: wanted.user, UID: wanted.uid, Groups: wanted.groups, Extra: wanted.extra})
		return
	}
	record.Identified(user, nil)
}
