// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
)

// NoName is the name of a principal in a Mapping which says that nothing is granted to it.
const NoName = "-"

// localProvider has the users who sign in at the hub with a password.
const localProvider = "local"

// Mapping says what Rancher's providers and principals are called in Drover. The export writes it, and a person
// completes it.
type Mapping struct {
	// Providers of Rancher that principals are of.
	Providers []Provider `json:"providers"`
	// Principals that bindings are for.
	Principals []Principal `json:"principals"`
}

// Provider is a provider of Rancher, and the AuthProvider that takes its place.
type Provider struct {
	Rancher string `json:"rancher"`
	// Name of the AuthProvider.
	Name string `json:"name"`
	// AcceptSuggested accepts the suggested names of its principals.
	AcceptSuggested bool `json:"acceptSuggested"`
}

// Principal is a user or group of Rancher, and its name in Drover.
type Principal struct {
	Rancher string         `json:"rancher"`
	Kind    v1.SubjectKind `json:"kind"`
	// Name is the name in Drover that a person chose. It is empty if none did, and NoName if nothing should be granted.
	Name string `json:"name"`
	// Decided is the name by what Rancher has recorded. Each export decides anew.
	Decided string `json:"decided,omitempty"`
	// Suggested is a name for a person to confirm.
	Suggested string `json:"suggested,omitempty"`
	// Why gives the origin of the name, or the reason why there is none.
	Why string `json:"why,omitempty"`
}

// effective is the name that bindings get.
func (p Principal) effective() string { return cmp.Or(p.Name, p.Decided) }

const mappingHead = `# Whom Rancher's principals are in Drover. Written by "kubectl drover rancher export": fill in the name of each that has nothing decided, and export
# again with --principals and this file. A name is that of a binding in Drover, such as github:alice or ldap:ops; "-" grants nothing. It counts before what is
# decided, which each export decides anew, with the providers' names here. What is suggested is a guess: with acceptSuggested: true it is decided for all of
# that provider. Names and providers stay as they are here; comments are not kept.
`

// YAML is the file.
func (m Mapping) YAML() ([]byte, error) {
	text, err := yaml.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write principals: %w", err)
	}
	return append([]byte(mappingHead), text...), nil
}

// ReadMapping reads the file. It refuses what a binding of Drover would refuse, and what contradicts itself.
func ReadMapping(text []byte) (Mapping, error) {
	var m Mapping
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		return Mapping{}, fmt.Errorf("read principals: %w", err)
	}
	var errs []error
	providers := map[string]bool{}
	for _, p := range m.Providers {
		switch {
		case p.Rancher == "" || providers[p.Rancher]:
			errs = append(errs, fmt.Errorf("provider %q is there twice, or has no name in Rancher", p.Rancher))
		case !validProvider(p.Name):
			errs = append(errs, fmt.Errorf("provider %q: %q is no name of an AuthProvider", p.Rancher, p.Name))
		}
		providers[p.Rancher] = true
	}
	seen := map[string]bool{}
	for _, p := range m.Principals {
		if p.Rancher == "" || seen[p.Rancher] {
			errs = append(errs, fmt.Errorf("principal %q is there twice, or has no name in Rancher", p.Rancher))
		} else if problem := problemOf(p); problem != "" {
			errs = append(errs, fmt.Errorf("principal %q: %s", p.Rancher, problem))
		}
		seen[p.Rancher] = true
	}
	return m, errors.Join(errs...)
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// validProvider reports whether an AuthProvider can have that name.
func validProvider(name string) bool {
	return dnsLabel.MatchString(name) && !slices.Contains([]string{"hub", "system", localProvider, "kubeadm", "eks"}, name)
}

func problemOf(p Principal) string {
	switch {
	case p.Kind != v1.SubjectUser && p.Kind != v1.SubjectGroup:
		return fmt.Sprintf("kind %q is neither User nor Group", p.Kind)
	case p.Name == "" || p.Name == NoName:
		return ""
	case !validSubject(p.Name):
		return fmt.Sprintf("%q cannot be the name in a binding: write provider:name", p.Name)
	}
	return ""
}

// validSubject reports whether a binding takes a name, and it is one of a provider: others would be names of the member
// itself.
func validSubject(name string) bool {
	provider, rest, found := strings.Cut(name, ":")
	return found && provider != "" && rest != "" && len(name) <= 1024 && strings.TrimSpace(name) == name && !strings.HasSuffix(name, ":") &&
		provider != "system" && provider != "drover" && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// order makes the file the same for the same principals.
func (m *Mapping) order() {
	slices.SortFunc(m.Providers, func(a, b Provider) int { return cmp.Compare(a.Rancher, b.Rancher) })
	slices.SortFunc(m.Principals, func(a, b Principal) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Rancher, b.Rancher))
	})
}
