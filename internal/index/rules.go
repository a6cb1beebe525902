// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"reflect"

	rbacv1 "k8s.io/api/rbac/v1"
)

// maxRules is the maximum size, in bytes, of a Role's rules that are kept in memory.
const maxRules = 4 << 10

// outlined is the API group of a rule that replaces other rules.
const outlined = "outline.cluster.drover.dev"

// outlineKey is the HMAC key for the digests of rules. Because the key is secret, no user can write a valid digest into
// a Role.
var outlineKey = []byte(rand.Text())

// OutlineRules returns a Role's rules in the form in which they are kept in memory. It replaces long rules with a
// single rule that contains their digest. Rules that have already been replaced are returned unchanged.
func OutlineRules(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	if len(rules) == 1 && len(rules[0].APIGroups) == 1 && rules[0].APIGroups[0] == outlined {
		rules = []rbacv1.PolicyRule{{APIGroups: []string{outlined}, ResourceNames: rules[0].ResourceNames}}
		if names := rules[0].ResourceNames; len(names) != 1 || len(names[0]) != hex.EncodedLen(sha256.Size) {
			rules[0].ResourceNames = nil // a user wrote this rule
		}
		return rules
	}
	size, hash := 0, hmac.New(sha256.New, outlineKey)
	for _, rule := range rules {
		for i, list := range [][]string{rule.APIGroups, rule.Resources, rule.ResourceNames, rule.Verbs,
			rule.NonResourceURLs} {
			_, _ = hash.Write([]byte{byte(i), 0}) // Write never returns an error
			for _, text := range list {
				size += len(text) + 16
				_, _ = hash.Write(append([]byte(text), 0))
			}
		}
		size += 128
	}
	if size <= maxRules {
		return rules
	}
	return []rbacv1.PolicyRule{{APIGroups: []string{outlined}, ResourceNames: []string{hex.EncodeToString(hash.Sum(nil))}}}
}

// SameRules reports whether a Role has the desired rules. The kept argument is the result of OutlineRules.
func SameRules(kept, want []rbacv1.PolicyRule) bool {
	return reflect.DeepEqual(kept, want) || reflect.DeepEqual(kept, OutlineRules(want))
}
