"""A book as audio: its text from a file, its sentences kept one by one, its chapters in a file of sound.

book      a book: chapters, title, author, cover
reading   from a file of text, Markdown or HTML
pages     from HTML to paragraphs and headings
epub      from an EPUB
planning  the sentences of a book, and what names the sound of each
kept      sentences that were made, in a folder
files     the file of sound, or a folder of them
"""
