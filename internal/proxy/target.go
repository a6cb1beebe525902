// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"net/url"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/identity/refusal"
)

// target is the destination of a request.
type target struct {
	local   bool                 // whether the target is the hub itself; cluster is empty in this case
	cluster types.NamespacedName // the member
	prefix  string               // the part of the request path before path, without a trailing slash
	path    string               // the path in the cluster, decoded; starts with a slash
	rawPath string               // the same path as the caller encoded it; empty if only one encoding is possible
}

// parseTarget returns the target of a request. It refuses paths that two parsers could interpret differently, so a
// request can only reach the target that was authorized. The path within the cluster is kept byte for byte.
func parseTarget(r *http.Request) (target, error) {
	u := r.URL
	if u.Scheme != "" || u.Host != "" || u.Opaque != "" || u.User != nil {
		return target{}, refusal.BadRequest("the request line has more than a path; send only the path")
	}
	if strings.Contains(u.Path, `\`) {
		return target{}, refusal.BadRequest("the path has a backslash")
	}
	for segment := range strings.SplitSeq(u.Path, "/") { // the path is decoded, so %2e and %2f cannot hide anything
		if segment == "." || segment == ".." {
			return target{}, refusal.BadRequest(`the path has a segment "." or ".."; send the path without them`)
		}
	}
	escaped := u.Path // the path has only one encoding, because a prefix that split accepts needs no escapes
	if u.RawPath != "" {
		escaped = u.EscapedPath()
	}
	to, ok := split(escaped)
	if !ok {
		return target{}, refusal.BadRequest(
			"the path does not have the form /k8s/clusters/<namespace>/<name>/… or /k8s/local/…")
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

// MemberOf returns the name of the member to which a Handler would send a request. The name is <namespace>/<name> for
// a member and "local" for the hub's own API. It is empty for every other path.
func MemberOf(r *http.Request) string {
	to, err := parseTarget(r)
	if err != nil {
		return ""
	}
	return to.member()
}

// split returns a target with the prefix of an encoded path. Names must be valid in Kubernetes and contain no encoded
// characters, so the decoded prefix has the same length.
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

// isName reports whether s is a valid name of a Kubernetes object: a DNS subdomain.
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

// relocate rewrites the Location of a response so that it points to the same resource through the hub. It refuses
// locations outside the API behind the prefix. Clients follow redirects with their token, and some of them also with
// the same method and body. Without this check, a member could redirect its users' requests to another member or to
// the hub.
func (t target) relocate(location string) (string, bool) {
	u, err := url.Parse(location)
	if err != nil || u.Opaque != "" || u.User != nil || strings.Contains(u.Path, `\`) {
		return "", false
	}
	if (u.Scheme != "" || u.Host != "") && !strings.HasPrefix(u.Path, "/api/") && !strings.HasPrefix(u.Path, "/apis/") {
		return "", false // an API server that redirects to its own address stays under its own paths
	}
	destination := u.Path
	switch {
	case destination == "":
		destination = t.path
	case destination[0] != '/':
		destination = t.path[:strings.LastIndexByte(t.path, '/')+1] + destination
	}
	clean := path.Clean(destination) // starts with a slash and contains no ".." that could escape the prefix
	if strings.HasSuffix(destination, "/") && clean != "/" {
		clean += "/"
	}
	out := url.URL{Path: t.prefix + clean, RawQuery: u.RawQuery, Fragment: u.Fragment}
	return out.String(), true
}
