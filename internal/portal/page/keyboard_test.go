// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/chromium"
	"github.com/drover-dev/drover/test/testkit"
)

// keys are the codes of keys that are no letters.
var keys = map[string]int{"ArrowDown": 40, "ArrowUp": 38}

// strike presses and releases keys, one after the other: letters, Tab, Enter, Escape and arrows.
func strike(p *chromium.Page, all ...string) {
	for _, key := range all {
		switch code := keys[key]; {
		case len(key) == 1:
			press(p, key, false)
		case code == 0:
			p.Press(key)
		default:
			for _, kind := range []string{"keyDown", "keyUp"} {
				p.Call("Input.dispatchKeyEvent",
					map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}, nil)
			}
		}
	}
}

// tabTo presses Tab until the focus is on an element, which may depend on a review of the user's rights.
func tabTo(t *testing.T, p *chromium.Page, wanted string) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		all, err := p.Elements()
		if err != nil {
			return err
		}
		for range all { // the focus returns to the beginning before
			focused := ""
			for _, e := range all {
				if e.Focused {
					focused = e.Role + ": " + e.Name
				}
			}
			if strings.HasPrefix(focused, wanted) {
				return nil
			}
			p.Press("Tab")
			if all, err = p.Elements(); err != nil {
				return err
			}
		}
		return fmt.Errorf("Tab does not lead to %q among\n%.3000s", wanted, chromium.String(all))
	})
}

func TestARoleIsGrantedAndRevokedWithKeysOnly(t *testing.T) {
	f, p := withAccess(t)
	f.on("DELETE "+bindingsPath+"clusterroletemplatebindings/bob-operator", always(map[string]any{}))
	strike(p, "g", "a")
	sees(t, p, "heading: Access")
	tabTo(t, p, "button: Grant a role")
	strike(p, "Enter")
	sees(t, p, "dialog: Grant a role")
	tabTo(t, p, "combobox: Name")
	p.Type("github:carol")
	tabTo(t, p, "combobox: Cluster")
	p.Type("c0001")
	tabTo(t, p, "combobox: Role")
	strike(p, "o") // operator
	tabTo(t, p, "button: Grant")
	strike(p, "Enter")
	granted := f.awaitSent(t, "PATCH "+bindingsPath+"clusterroletemplatebindings/carol-operator-c0001-")
	want := "map[clusterName:c0001 roleTemplateName:operator subject:map[kind:User name:github:carol]]"
	if got := fmt.Sprint(granted.body["spec"]); got != want {
		t.Errorf("the page applies %s, want %s", got, want)
	}
	strike(p, "Escape") // the fake hub knows no such binding, so the dialog shows a problem
	eventually(t, p, `document.querySelectorAll("dialog").length`, 0)
	tabTo(t, p, "link: github:bob")
	strike(p, "Enter")
	sees(t, p, "heading: github:bob is operator")
	tabTo(t, p, "button: Revoke")
	strike(p, "Enter")
	sees(t, p, "dialog: Revoke this role?")
	tabTo(t, p, "button: Revoke")
	strike(p, "Enter")
	sees(t, p, "StaticText: github:bob no longer has the role operator in clusters with env=prod.", "heading: Access")
	revoked := f.awaitSent(t, "DELETE "+bindingsPath+"clusterroletemplatebindings/bob-operator")
	if got, want := fmt.Sprint(revoked.body["preconditions"]), "map[uid:uid-of-bob-operator]"; got != want {
		t.Errorf("the page deletes a binding with %s, want %s", got, want)
	}
}

func TestAClusterIsDeletedWithKeysOnly(t *testing.T) {
	f, p := signedIn(t, 2)
	f.on("DELETE "+clustersPath+"c0001", always(map[string]any{}))
	strike(p, "g", "c")
	tabTo(t, p, "link: c0001")
	strike(p, "Enter")
	sees(t, p, "heading: c0001")
	tabTo(t, p, "button: Delete the cluster")
	strike(p, "Enter")
	sees(t, p, "dialog: Delete the cluster c0001?")
	eventually(t, p, `document.activeElement.tagName`, "INPUT")
	p.Type("c0001") // without the workspace
	strike(p, "Enter")
	eventually(t, p, `document.querySelector("dialog .danger").disabled`, true)
	strike(p, "Escape")
	eventually(t, p, `document.activeElement.ariaLabel`, "Delete the cluster") // where the user was
	strike(p, "Enter")
	eventually(t, p, `document.activeElement.tagName`, "INPUT")
	p.Type("team/c0001")
	strike(p, "Enter")
	sees(t, p, "StaticText: c0001 is being deleted.", "heading: Clusters")
	deleted := f.awaitSent(t, "DELETE "+clustersPath+"c0001")
	if got, want := fmt.Sprint(deleted.body["preconditions"]), "map[uid:uid-of-c0001]"; got != want {
		t.Errorf("the page deletes a Cluster with %s, want %s", got, want)
	}
}

func TestAPlanIsPausedAndResumedWithKeysOnly(t *testing.T) {
	f, p := newFailing(t, nil)
	strike(p, "g", "p")
	tabTo(t, p, "link: kernel")
	strike(p, "Enter")
	sees(t, p, "heading: kernel")
	for i, action := range []string{"Pause", "Resume"} {
		tabTo(t, p, "button: "+action)
		strike(p, "Enter")
		sees(t, p, "dialog: "+action+" kernel?")
		tabTo(t, p, "button: "+action)
		strike(p, "Enter")
		sees(t, p, "StaticText: kernel "+[]string{"starts nothing new", "goes on"}[i]+".")
		eventually(t, p, `document.querySelectorAll("dialog").length`, 0)
		f.send(failingPlan(i == 0, 2+i, "Paused"))
	}
	f.sends(t, "map[uid:u] map[paused:true]", "map[uid:u] map[paused:false]")
}

func TestTheCommandPaletteWorksWithKeysOnly(t *testing.T) {
	_, p := signedIn(t, 3)
	const chosen = `document.querySelector("[role=option][aria-selected=true] .palette-title")?.textContent`
	tabTo(t, p, "link: Plans")
	press(p, "k", true)
	sees(t, p, "dialog: Commands")
	eventually(t, p, `document.activeElement.tagName`, "INPUT")
	p.Type("c000")
	eventually(t, p, chosen, "c0000")
	strike(p, "ArrowUp") // the last one
	eventually(t, p, chosen, "c0002")
	strike(p, "ArrowDown", "ArrowDown")
	eventually(t, p, chosen, "c0001")
	strike(p, "Escape")
	eventually(t, p, `document.querySelectorAll("dialog").length`, 0)
	eventually(t, p, `document.activeElement.textContent`, "Plans") // where the user was
	press(p, "k", true)
	sees(t, p, "dialog: Commands")
	eventually(t, p, `document.activeElement.tagName`, "INPUT")
	p.Type("sign out")
	eventually(t, p, chosen, "Sign out")
	strike(p, "Enter")
	sees(t, p, "heading: Sign in to Drover")
}
