package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSocketPath(t *testing.T) {
	for _, c := range []struct{ name, conf, want string }{
		{"compact", `{"cniVersion":"1.0.0","socket":"/run/clusterd/cni.sock","type":"x"}`, "/run/clusterd/cni.sock"},
		{"spaced", "{\n  \"socket\" :\t\"/a\"\n}", "/a"},
		{"also a value", `{"name":"socket","socket":"/a"}`, "/a"},
		{"other type first", `{"x":{"socket":5},"socket":"/a"}`, "/a"},
		{"escapes", `{"socket":"/a\u0026b\"c\\d"}`, `/a&b"c\d`},
		{"missing", `{"name":"x"}`, ""},
		{"empty", `{"socket":""}`, ""},
		{"cut off", `{"socket":"/a`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := socketPath([]byte(c.conf))
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("got %q %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestSocketPathReadsWhatTheEncoderWrites(t *testing.T) {
	want := "/tmp/a b<c>&d\"e\\f\x01g/é/\u2028.sock"
	data, err := json.Marshal(map[string]any{"aaa": "socket", "socket": want, "zzz": 1})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := socketPath(data); got != want {
		t.Errorf("got %q %v, want %q", got, err, want)
	}
}

func TestErrorResultIsJSON(t *testing.T) {
	for _, text := range []string{"plain", `with "quotes" and \`, "line\nbreak\x00", "é \xff"} {
		var e struct {
			Code int
			Msg  string
		}
		data := errorResult(errorString(text))
		if err := json.Unmarshal(data, &e); err != nil || e.Code != 11 || e.Msg == "" || strings.Contains(e.Msg, "\n") {
			t.Errorf("%q: %s: %v", text, data, err)
		}
	}
}

type errorString string

func (e errorString) Error() string { return string(e) }
