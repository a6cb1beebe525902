// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"fmt"
	"strings"

	ber "github.com/go-asn1-ber/asn1-ber"
	goldap "github.com/go-ldap/ldap/v3"
)

// Placeholders in a filter template.
const (
	placeName = "{name}"
	placeDN   = "{dn}"
)

// mark replaces the placeholders when a template is checked. It needs no escaping.
const mark = "drover-0-value"

// template is a filter template with placeholders for values. Values cannot change the structure of the filter, because
// they are escaped and because placeholders are allowed only where a filter compares an attribute with a value.
type template struct{ text string }

// parseTemplate returns a template if text is a valid filter that contains at least one of the placeholders in places,
// and no others.
func parseTemplate(text string, places ...string) (template, error) {
	if text == "" || len(text) > 4<<10 || strings.Contains(text, mark) {
		return template{}, fmt.Errorf("%q is not a filter", bounded(text))
	}
	t, count, marked := template{text}, 0, text
	for _, place := range places {
		count += strings.Count(text, place)
		marked = strings.ReplaceAll(marked, place, mark)
	}
	if count == 0 || strings.ContainsAny(marked, "{}") {
		return template{}, fmt.Errorf("%q must have %s, and no other placeholder in braces", bounded(text),
			strings.Join(places, " or "))
	}
	packet, err := goldap.CompileFilter(marked)
	if err != nil {
		return template{}, fmt.Errorf("%q is not a filter", bounded(text))
	}
	if compared(packet) != count {
		return template{}, fmt.Errorf("%q: %s must be a value that an attribute is compared with, and not within a (!…)",
			bounded(text), strings.Join(places, " or "))
	}
	return t, nil
}

// compared counts the marks in the values of comparisons, except for negated comparisons.
func compared(packet *ber.Packet) int {
	count := 0
	switch packet.Tag {
	case goldap.FilterAnd, goldap.FilterOr:
		for _, child := range packet.Children {
			count += compared(child)
		}
	case goldap.FilterEqualityMatch:
		count += marks(packet.Children[1])
	case goldap.FilterSubstrings:
		for _, part := range packet.Children[1].Children {
			count += marks(part)
		}
	case goldap.FilterExtensibleMatch: // such as LDAP_MATCHING_RULE_IN_CHAIN
		for _, part := range packet.Children {
			if part.Tag == goldap.MatchingRuleAssertionMatchValue {
				count += marks(part)
			}
		}
	}
	return count
}

func marks(packet *ber.Packet) int {
	return strings.Count(packet.Data.String(), mark)
}

func (t template) has(place string) bool { return strings.Contains(t.text, place) }

// fill returns the filter with the given values. It does not replace placeholders within the values.
func (t template) fill(name, dn string) string {
	return strings.NewReplacer(placeName, goldap.EscapeFilter(name), placeDN, goldap.EscapeFilter(dn)).Replace(t.text)
}

// any returns the filter that matches any name.
func (t template) any() string { return strings.ReplaceAll(t.text, placeName, "*") }

// equals returns a filter for entries whose attribute has the value. The value may contain arbitrary bytes.
func equals(attribute, value string) string {
	return "(" + attribute + "=" + goldap.EscapeFilter(value) + ")"
}

func either(filters []string) string { return "(|" + strings.Join(filters, "") + ")" }

func both(a, b string) string { return "(&" + a + b + ")" }
