// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of names, in bytes.
const (
	maxName  = 128
	maxGroup = 256
)

// nameForm is that of users. Capitals and other scripts have look-alikes, a colon ends the name of a provider, and a slash that of a path.
var nameForm = regexp.MustCompile(`^[a-z0-9_]([-a-z0-9._@+']*[a-z0-9_])?$`)

// Principal returns the principal of a provider's user, and refuses names that could be taken for those of others. It changes no name: what a provider tells
// apart must not become one.
func Principal(provider, name string) (string, error) {
	if Reserved(provider) {
		return "", fmt.Errorf("a provider must not be named %q", provider)
	}
	if len(name) > maxName || !nameForm.MatchString(name) {
		return "", fmt.Errorf("the provider's name %.*q cannot be that of a user: it must have at most %d lower-case letters, digits and . _ @ + - '; for capitals see lowercaseNames of the provider", maxName, name, maxName)
	}
	return provider + ":" + name, nil
}

// Groups returns the names in bindings of a provider's groups. It leaves out those that no binding can name.
func Groups(provider string, groups []string) []string {
	var named []string
	for _, g := range groups {
		if g == "" || len(g) > maxGroup || !utf8.ValidString(g) || strings.TrimSpace(g) != g || strings.Contains(g, ":") || strings.ContainsFunc(g, unseen) {
			continue
		}
		named = append(named, provider+":"+g)
	}
	return named
}

// unseen reports whether a letter is not seen in a binding, or does not arrive unchanged in a header.
func unseen(r rune) bool { return !unicode.IsPrint(r) || r > unicode.MaxASCII }

// reserved precede names of users and groups that others make: the hub, API servers, and what installs clusters. Members made by kubeadm bind the group
// kubeadm:cluster-admins to cluster-admin, and those of EKS users such as eks:addon-manager to much.
var reserved = []string{"local", "hub", "system", "kubeadm", "eks"}

// Reserved reports whether a name must not be that of a provider.
func Reserved(provider string) bool {
	return provider == "" || strings.Contains(provider, ":") || slices.Contains(reserved, provider)
}
