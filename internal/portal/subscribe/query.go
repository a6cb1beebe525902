// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/untrusted"
)

const (
	mostNamed  = 100     // the maximum number of workspaces in a query
	mostResume = 4 << 10 // the maximum length of a resume token, in bytes
)

type query struct {
	kinds      []string // resources, in the order of subscribable
	workspaces []string // empty if all workspaces are requested
	resume     resume
}

// queryOf parses the parameters of a request. Its errors are refusals. It ignores a resume token that cannot be
// decoded. The stream then starts from the beginning.
func queryOf(values url.Values) (query, error) {
	for name := range values {
		if !slices.Contains([]string{"kind", "namespace", "resume"}, name) {
			return query{}, refusal.BadRequest(fmt.Sprintf("unknown parameter %q: use kind, namespace or resume", name))
		}
	}
	var q query
	asked := values["kind"]
	for _, k := range subscribable() {
		if len(asked) == 0 || slices.Contains(asked, k.Resource) {
			q.kinds = append(q.kinds, k.Resource)
		}
	}
	for _, name := range asked {
		if !slices.Contains(q.kinds, name) {
			return query{}, refusal.BadRequest(fmt.Sprintf("you cannot subscribe to %q: use a resource such as "+
				"clusters or plans", name))
		}
	}
	q.workspaces = slices.Compact(slices.Sorted(slices.Values(values["namespace"])))
	if len(q.workspaces) > mostNamed {
		return query{}, refusal.BadRequest(fmt.Sprintf("the query names more than %d namespaces", mostNamed))
	}
	for _, name := range q.workspaces {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return query{}, refusal.BadRequest(fmt.Sprintf("%q is not the name of a namespace: %s", name,
				strings.Join(problems, "; ")))
		}
	}
	q.resume = parse(values.Get("resume"))
	return q, nil
}

// asks reports whether the query includes a workspace. Every query includes cluster-scoped objects.
func (q query) asks(workspace string) bool {
	return len(q.workspaces) == 0 || workspace == "" || slices.Contains(q.workspaces, workspace)
}

// resume is the position from which a stream is resumed.
type resume struct {
	// Versions maps each resource to a resource version. All changes up to that version have been sent.
	Versions map[string]uint64 `json:"v"`
	// Rights is a digest of the user's rights.
	Rights []byte `json:"r"`
}

// String returns the resume token. The token contains no secrets and grants no access. It only determines which changes
// do not have to be sent again.
//
// The token has no signature. With a forged token, users can only skip changes in their own stream, or learn the names
// and UIDs of deleted objects in workspaces where they are now allowed to watch the kind. A watch on the API server
// that starts at an old resource version reveals the same information. For a version that this replica has not reached,
// the replica only lists a single object.
func (r resume) String() string {
	data, err := json.Marshal(r)
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

func parse(token string) resume {
	var r resume
	data, err := base64.RawURLEncoding.DecodeString(token)
	if token == "" || len(token) > mostResume || err != nil || untrusted.JSON(data, &r, untrusted.Small()) != nil {
		return resume{}
	}
	return r
}

// digest returns a digest of the user, the query, and the objects that are visible to the user.
func digest(user string, q query, seen map[string][]string) []byte {
	h := sha256.New()
	write := func(part string) {
		_ = binary.Write(h, binary.BigEndian, uint64(len(part)))
		_, _ = h.Write([]byte(part))
	}
	for _, part := range slices.Concat([]string{user, "kinds"}, q.kinds, []string{"workspaces"}, q.workspaces) {
		write(part)
	}
	for _, kind := range slices.Sorted(maps.Keys(seen)) {
		for _, part := range append([]string{"of", kind}, seen[kind]...) {
			write(part)
		}
	}
	return h.Sum(nil)[:16]
}
