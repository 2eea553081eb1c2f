package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/config"
)

// Reference writes a page in Markdown about all commands of app and their flags. Flags of the commands that are named in
// configurable can also be set in the environment and in files.
func Reference(w io.Writer, app *cli.App, configurable ...string) error {
	page := &strings.Builder{}
	page.WriteString("# Commands and flags\n\nThis page is made from the code.\n")
	for _, c := range app.Commands {
		writeCommand(page, app.Name, c, configurable)
	}
	if _, err := io.WriteString(w, page.String()); err != nil {
		return fmt.Errorf("write reference: %w", err)
	}
	return nil
}

func writeCommand(page *strings.Builder, parent string, c *cli.Command, configurable []string) {
	if c.Hidden {
		return // programs call it, not people
	}
	path := parent + " " + c.Name
	fmt.Fprintf(page, "\n## %s\n\n", path)
	fmt.Fprintf(page, "%s.\n\n    %s\n", sentence(c.Usage), strings.TrimSpace(path+" "+argsUsage(c)))
	if c.Description != "" {
		fmt.Fprintf(page, "\n%s\n", paragraph(c.Description))
	}
	if slices.Contains(configurable, c.Name) {
		writeConfigurable(page, c)
	} else {
		writeFlags(page, c.Flags)
	}
	for _, sub := range c.Subcommands {
		writeCommand(page, path, sub, configurable)
	}
}

func argsUsage(c *cli.Command) string {
	switch {
	case c.ArgsUsage != "" && len(c.Flags) > 0:
		return "[FLAGS] " + c.ArgsUsage
	case len(c.Subcommands) > 0:
		return "COMMAND"
	case len(c.Flags) > 0:
		return "[FLAGS]"
	}
	return c.ArgsUsage
}

// sentence begins with a capital letter.
func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// paragraph keeps line breaks, and sets descriptions with columns as they are.
func paragraph(s string) string {
	if strings.Contains(s, "  ") {
		return "```\n" + s + "\n```"
	}
	return s
}

func writeFlags(page *strings.Builder, flags []cli.Flag) {
	if len(visible(flags)) == 0 {
		return
	}
	page.WriteString("\n| Flag | Default | Meaning |\n|---|---|---|\n")
	for _, f := range visible(flags) {
		d := describe(f)
		fmt.Fprintf(page, "| %s | %s | %s |\n", d.flag, d.defaults, d.meaning)
	}
}

// writeConfigurable has a table for each category in the order of their first flags.
func writeConfigurable(page *strings.Builder, c *cli.Command) {
	for _, category := range categories(c.Flags) {
		fmt.Fprintf(page, "\n### %s\n\n| Flag and key | Environment | Default | Meaning |\n|---|---|---|---|\n", category)
		for _, f := range visible(c.Flags) {
			if categoryOf(f) == category {
				d := describe(f)
				fmt.Fprintf(page, "| %s | `%s` | %s | %s |\n", d.flag, config.EnvName(d.name), d.defaults, d.meaning)
			}
		}
	}
}

func categories(flags []cli.Flag) []string {
	var all []string
	seen := map[string]bool{}
	for _, f := range visible(flags) {
		if c := categoryOf(f); !seen[c] {
			seen[c] = true
			all = append(all, c)
		}
	}
	return all
}

func categoryOf(f cli.Flag) string {
	if c, ok := f.(cli.CategorizableFlag); ok {
		return c.GetCategory()
	}
	return ""
}

// visible leaves out the flag help, which every command has, since the library adds it when it runs.
func visible(flags []cli.Flag) []cli.Flag {
	var all []cli.Flag
	for _, f := range flags {
		if f.Names()[0] != cli.HelpFlag.Names()[0] {
			all = append(all, f)
		}
	}
	return all
}

// description is a flag as the cells of a table.
type description struct{ name, flag, defaults, meaning string }

func describe(f cli.Flag) description {
	d := description{name: f.Names()[0], flag: flagCell(f)}
	doc, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return d
	}
	d.meaning = strings.NewReplacer("`", "*", "|", "\\|").Replace(doc.GetUsage())
	d.defaults = defaultCell(f, doc)
	if s, ok := f.(cli.DocGenerationSliceFlag); ok && s.IsSliceFlag() {
		d.meaning += "; can be repeated"
	}
	return d
}

func flagCell(f cli.Flag) string {
	var all []string
	for _, name := range f.Names() {
		dashes := "--"
		if len(name) == 1 {
			dashes = "-"
		}
		all = append(all, "`"+dashes+name+"`")
	}
	return strings.Join(all, ", ")
}

// defaultCell prefers a description of the default in words.
func defaultCell(f cli.Flag, doc cli.DocGenerationFlag) string {
	switch f := f.(type) {
	case *cli.StringFlag:
		if f.DefaultText != "" {
			return f.DefaultText
		}
	case *cli.StringSliceFlag:
		if f.DefaultText != "" {
			return f.DefaultText
		}
		if f.Value == nil {
			return ""
		}
		return "`" + strings.Join(f.Value.Value(), ",") + "`"
	}
	if doc.GetValue() == "" {
		return ""
	}
	return "`" + doc.GetValue() + "`"
}
