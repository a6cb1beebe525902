// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// tokens are the light and the dark value of each color.
func tokens(t *testing.T) map[string][2]string {
	t.Helper()
	css, err := fs.ReadFile(static, "static/style/tokens.css")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][2]string{}
	pair := regexp.MustCompile(`--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);`)
	for _, match := range pair.FindAllStringSubmatch(string(css), -1) {
		found[match[1]] = [2]string{match[2], match[3]}
	}
	return found
}

// luminance returns the relative luminance of a color such as #102030, as WCAG 2.2 defines it.
func luminance(color string) float64 {
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		value, _ := strconv.ParseUint(color[1+2*i:3+2*i], 16, 8) // tokens matches only such colors
		c := float64(value) / 255
		if c <= 0.04045 {
			sum += weight * c / 12.92
		} else {
			sum += weight * math.Pow((c+0.055)/1.055, 2.4)
		}
	}
	return sum
}

func contrast(a, b string) float64 {
	high, low := luminance(a), luminance(b)
	if high < low {
		high, low = low, high
	}
	return (high + 0.05) / (low + 0.05)
}

// TestColorsHaveEnoughContrast computes the contrast of every pair of colors that DESIGN.md allows, and compares the
// lowest figures with those in its table.
func TestColorsHaveEnoughContrast(t *testing.T) {
	all := tokens(t)
	grounds := []string{"bg", "surface", "raised", "sunken", "hover"}
	pairs := map[string][]string{
		"text": append([]string{"accent-soft", "good-soft", "wait-soft", "bad-soft"}, grounds...), "soft": grounds,
		"accent": append([]string{"accent-soft"}, grounds...), "good": append([]string{"good-soft"}, grounds...),
		"wait": append([]string{"wait-soft"}, grounds...), "bad": append([]string{"bad-soft"}, grounds...),
		"on-accent": {"accent"}, "surface": {"good", "wait", "bad"}, "line-strong": {"surface", "raised", "bg"},
	}
	design, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	for front, backs := range pairs {
		want := 4.5
		if front == "line-strong" {
			want = 3 // the edge of a control, not text
		}
		lowest := [2]float64{100, 100}
		for _, back := range backs {
			for i, theme := range []string{"light", "dark"} {
				if all[front][i] == "" || all[back][i] == "" {
					t.Fatalf("tokens.css has no color %s or %s", front, back)
				}
				got := contrast(all[front][i], all[back][i])
				lowest[i] = min(lowest[i], got)
				if got < want {
					t.Errorf("%s on %s, %s: %.2f, want at least %.1f", front, back, theme, got, want)
				}
			}
		}
		row := fmt.Sprintf("| `%s` | %s | %s | %.1f | %.1f |", front, all[front][0], all[front][1], lowest[0], lowest[1])
		if !strings.Contains(string(design), row) {
			t.Errorf("DESIGN.md has no row %s", row)
		}
	}
}

// TestColorsAreOnlyInTheTokens keeps other files free of colors of their own.
func TestColorsAreOnlyInTheTokens(t *testing.T) {
	color := regexp.MustCompile(`#[0-9a-fA-F]{3,8}\b[;, )]|rgba?\(|hsla?\(|oklch\(`)
	own(t, func(name string, content []byte) {
		if strings.HasSuffix(name, ".css") && name != "style/tokens.css" {
			if found := color.Find(content); found != nil {
				t.Errorf("%s has the color %q, want a token of style/tokens.css", name, found)
			}
		}
	})
}
