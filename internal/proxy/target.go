// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/identity/refusal"
)

// target is where a request goes.
type target struct {
	local   bool                 // the hub itself; cluster is empty then
	cluster types.NamespacedName // which member
	prefix  string               // what precedes the path on the hub, without a slash at its end
	path    string               // the path there, decoded; begins with a slash
	rawPath string               // the same as the caller encoded it; empty if path has only one encoding, see url.URL
}

// parseTarget finds out where a request goes. It refuses whatever two readers could read differently, so that what is
// authorized is what is reached. The path there stays byte for byte what it was.
func parseTarget(r *http.Request) (target, error) {
	u := r.URL
	if u.Scheme != "" || u.Host != "" || u.Opaque != "" || u.User != nil {
		return target{}, refusal.BadRequest("the request line holds more than a path; send only the path")
	}
	if strings.Contains(u.Path, `\`) {
		return target{}, refusal.BadRequest("the path has a backslash")
	}
	for segment := range strings.SplitSeq(u.Path, "/") { // decoded, so %2e and %2f hide nothing
		if segment == "." || segment == ".." {
			return target{}, refusal.BadRequest(`the path has a segment "." or ".."; send the path that it leads to`)
		}
	}
	escaped := u.Path // where it has one encoding only: there is nothing to encode in a prefix that split takes
	if u.RawPath != "" {
		escaped = u.EscapedPath()
	}
	to, ok := split(escaped)
	if !ok {
		return target{}, refusal.BadRequest("the path is not of the form /k8s/clusters/<namespace>/<name>/… or /k8s/local/…")
	}
	to.path = u.Path[len(to.prefix):]
	if to.path == "" {
		to.path = "/"
	}
	if strings.HasPrefix(to.path, "//") {
		return target{}, refusal.BadRequest("the path in the cluster begins with two slashes")
	}
	if u.RawPath != "" {
		to.rawPath = escaped[len(to.prefix):]
	}
	return to, nil
}

// MemberOf returns the member that a Handler would send a request to: <namespace>/<name>, "local" for the hub's own
// API, and empty for every other path.
func MemberOf(r *http.Request) string {
	to, err := parseTarget(r)
	if err != nil {
		return ""
	}
	return to.member()
}

// split finds the prefix of an encoded path. Names must be spelled as Kubernetes has them, with nothing encoded, so
// that the prefix is as long decoded.
func split(escaped string) (target, bool) {
	if rest, ok := strings.CutPrefix(escaped, PathLocal); ok {
		return target{local: true, prefix: PathLocal}, rest == "" || rest[0] == '/'
	}
	rest, ok := strings.CutPrefix(escaped, PathClusters)
	if !ok {
		return target{}, false
	}
	namespace, rest, _ := strings.Cut(rest, "/")
	name, _, _ := strings.Cut(rest, "/")
	if !isName(namespace) || !isName(name) || len(namespace) > 63 || strings.Contains(namespace, ".") {
		return target{}, false
	}
	return target{
		cluster: types.NamespacedName{Namespace: namespace, Name: name},
		prefix:  escaped[:len(PathClusters)+len(namespace)+1+len(name)],
	}, true
}

// isName reports whether s can be the name of a Kubernetes object: a DNS subdomain.
func isName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
		}
	}
	return true
}
