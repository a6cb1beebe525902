// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package account

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

// nameForm is the form of users' names. Capitals and other scripts have look-alikes, a colon ends the name of a
// provider, and a slash separates the parts of a path.
var nameForm = regexp.MustCompile(`^[a-z0-9_]([-a-z0-9._@+']*[a-z0-9_])?$`)

// Principal returns the principal of a provider's user. It refuses a name that could be taken for another principal, and
// never changes one: two users of a provider must not become one principal.
func Principal(provider, name string) (string, error) {
	if Reserved(provider) {
		return "", fmt.Errorf("a provider must not be named %q", provider)
	}
	if len(name) > maxName || !nameForm.MatchString(name) {
		return "", fmt.Errorf("the provider's name %.*q cannot be that of a user: it must have at most %d lower-case "+
			"letters, digits and . _ @ + - '; for capitals see lowercaseNames of the provider", maxName, name, maxName)
	}
	return provider + ":" + name, nil
}

// Groups returns the names that a provider's groups have in bindings. It leaves out groups that no binding can name.
func Groups(provider string, groups []string) []string {
	var named []string
	for _, g := range groups {
		if g == "" || len(g) > maxGroup || !utf8.ValidString(g) || strings.TrimSpace(g) != g ||
			strings.Contains(g, ":") || strings.ContainsFunc(g, unseen) {
			continue
		}
		named = append(named, provider+":"+g)
	}
	return named
}

// unseen reports whether a letter is invisible in a binding, or does not arrive unchanged in a header.
func unseen(r rune) bool { return !unicode.IsPrint(r) || r > unicode.MaxASCII }

// reserved precede names of users and groups that others create: the hub, API servers, and installers of clusters.
// Members made by kubeadm bind the group kubeadm:cluster-admins to cluster-admin, and members on EKS bind users such as
// eks:addon-manager to many rights.
var reserved = []string{Local, "hub", "system", "kubeadm", "eks"}

// Reserved reports whether a provider must not have a name.
func Reserved(provider string) bool {
	return provider == "" || strings.Contains(provider, ":") || slices.Contains(reserved, provider)
}
