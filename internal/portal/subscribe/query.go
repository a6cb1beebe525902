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
	mostNamed  = 100     // workspaces in one query
	mostResume = 4 << 10 // bytes of a resume token
)

// query is what a client asks for.
type query struct {
	kinds      []string // resources, in the order of kinds
	workspaces []string // empty for all
	resume     resume
}

// queryOf reads the parameters. Its errors are refusals. A resume token that cannot be read is none: the stream begins
// anew.
func queryOf(values url.Values) (query, error) {
	for name := range values {
		if !slices.Contains([]string{"kind", "namespace", "resume"}, name) {
			return query{}, refusal.BadRequest(fmt.Sprintf("there is no parameter %q: kind, namespace and resume are known", name))
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
			return query{}, refusal.BadRequest(fmt.Sprintf("%q is not a kind to subscribe to: name a resource, such as clusters or plans", name))
		}
	}
	q.workspaces = slices.Compact(slices.Sorted(slices.Values(values["namespace"])))
	if len(q.workspaces) > mostNamed {
		return query{}, refusal.BadRequest(fmt.Sprintf("the query names more than %d namespaces", mostNamed))
	}
	for _, name := range q.workspaces {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return query{}, refusal.BadRequest(fmt.Sprintf("%q is not the name of a namespace: %s", name, strings.Join(problems, "; ")))
		}
	}
	q.resume = parse(values.Get("resume"))
	return q, nil
}

// asks reports whether the query is about a workspace. Objects without one are of all queries.
func (q query) asks(workspace string) bool {
	return len(q.workspaces) == 0 || workspace == "" || slices.Contains(q.workspaces, workspace)
}

// resume is where a stream goes on.
type resume struct {
	// Versions are the resource versions up to which changes were sent, by resource.
	Versions map[string]uint64 `json:"v"`
	// Rights is a digest of who sees what.
	Rights []byte `json:"r"`
}

// String is the token. It holds nothing secret, and is worth nothing: what it says is only what does not have to be
// sent again.
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

// digest is of who asks for what, and what they may see.
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
