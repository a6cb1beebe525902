// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/url"
	"path"
	"strings"
)

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
		return "", false // an API server that redirects to its own address stays below its own paths
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
